// One token of each of few segments, from its projections to what the last product reads, as one
// kernel: what counts is how long each part waits for the one before. A cluster of blocks is one
// head of one segment, and a block has some of the hidden units, columns of W_1 and rows of W_2,
// with S in registers, on their way while the kernel ahead still runs. All blocks find the streams
// of the head, and all warps the error, by themselves: only the network's outputs cross blocks, in
// stores that a barrier of the receiver counts, and sums of rows cross warps once a product.
#include <algorithm>
#include <cstdint>
#include <span>
#include <variant>

#include "kernels/cuda/common/activation.cuh"
#include "kernels/cuda/common/bulk_copy.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/matrix_memory/stream.cuh"
#include "kernels/cuda/neural_memory/activate.cuh"
#include "kernels/cuda/neural_memory/keep_gate.cuh"
#include "kernels/cuda/neural_memory/resident/fused_rows.cuh"
#include "kernels/cuda/neural_memory/resident/fused_token.h"

namespace mneme::cuda::neural_memory::resident {
namespace {

using matrix_memory::Last;
using matrix_memory::Stream;

constexpr int kMostDim = 4 * kWarp;    // a lane has four elements of a head
constexpr int kMostUnits = 4 * kWarp;  // hidden units of a block
constexpr int kMostHeldRows = 6;       // of a matrix, of a thread
enum : int { kQ, kK, kV, kVectors };
enum : int { kRate, kMomentum, kKeep, kGates };
// Warps with work of their own: the first three have a vector each.
enum : int { kGatesWarp = 3, kLossWarp = 5, kAnswerWarp = 7 };

struct FusedToken {
  Params memory;
  Stream vectors[kVectors];
  Stream gates[kGates];  // without x: there is no such gate
  // The answer's gate and norm, and where it goes from there; y null: it has neither.
  const void* answer_gate;  // [entries, heads * dim]
  bool rounded_gate;
  Activation activation;
  const float* norm;  // [dim]
  float eps;
  ReadOutput y;
  int bits[2];  // log2 of the lanes that have a row of W_1, of W_2
};

// Arrays of which fours are read and sent begin at sixteen bytes.
struct Shared {
  alignas(16) float vectors[kVectors][kMostDim];
  alignas(16) float partial[2][kWarps * kMostDim];  // of warps: products with W_1, with W_2
  alignas(16) float delta[kMostUnits];
  alignas(16) float outputs[2][kMaxTeam * kMostDim];  // of blocks: of k, of q
  float gates[kGates];
  uint64_t sent[2];
};

// A gate of the head, from its logit.
__device__ inline float GateOf(const Stream& s, const matrix_memory::GateWeights& weights,
                               int entry, int head) {
  const int64_t row = s.entry_rows != nullptr ? s.entry_rows[entry] : entry;
  const int64_t at = row * s.channels + head;
  float x = s.rounded ? ToFloat(static_cast<const __nv_bfloat16*>(s.x)[at])
                      : static_cast<const float*>(s.x)[at];
  x = s.activation_scale * Activated(s.activation, x);
  if (s.last != Last::kKeep) return x;
  return neural_memory::KeepOf(x, s.gate.a_log != nullptr, weights.a_log, weights.dt_bias);
}

template <int kHeld>
__global__ void __launch_bounds__(kHeld <= 2 ? kThreads : 3 * kThreads / 2, kHeld <= 2 ? 2 : 1)
    FusedTokenKernel(const __grid_constant__ FusedToken t) {
  __shared__ Shared shared;
  const Params& p = t.memory;
  LetNextKernelStart();
  if (!p.early) WaitForPreviousKernel();
  const Team team;
  const int unit = static_cast<int>(blockIdx.x) / p.blocks, head = unit % p.heads;
  const int rank = team.rank();
  const Segment segment(p.segments, unit / p.heads);
  if (segment.slot < 0 || segment.end == segment.first) return WaitForPreviousKernel();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const int entry = segment.first, dim = p.dim, fours = dim / 4;
  const bool has_momentum = p.momentum != nullptr;
  const bool first = p.positions[entry] == p.first_position;
  const MemoryNetwork& network = p.network;
  const bool normed = network.norm != MemoryNetwork::Norm::kNone;
  const bool centred = network.norm == MemoryNetwork::Norm::kLayer;
  const Part &part_1 = p.division.parts[0], &part_2 = p.division.parts[1];
  const Rows rows_1(part_1, t.bits[0]), rows_2(part_2, t.bits[1]);
  constexpr int kGain = TensorsOfHead<2>::kGain;
  const TensorsOfHead<2> tensors(p, segment, head, rank);
  if (thread == 0) {
    for (uint64_t& barrier : shared.sent) InitBarrier(&barrier, 1);
    FenceBulkBarriers();
    for (uint64_t& barrier : shared.sent) {
      ArriveAndExpect(&barrier, static_cast<uint32_t>(4 * p.blocks * dim));
    }
  }

  // Everything is under way before anything is waited for.
  float4 w_1[kHeld], s_1[kHeld], w_2[kHeld], s_2[kHeld];
  LoadRows(tensors.Start(p.weights, 0, first), part_1, rows_1, w_1);
  LoadRows(tensors.Start(p.weights, 1, first), part_2, rows_2, w_2);
  LoadRows(has_momentum ? tensors.Start(p.momenta, 0, first) : nullptr, part_1, rows_1, s_1);
  LoadRows(has_momentum ? tensors.Start(p.momenta, 1, first) : nullptr, part_2, rows_2, s_2);
  Four gain, gain_momenta, shift;
  if (normed && rows_2.has) {
    const auto four_of = [&](const float* from) {
      return Four(from == nullptr ? float4{}
                                  : __ldcg(reinterpret_cast<const float4*>(from + rows_2.column)));
    };
    shift = four_of(p.shift == nullptr ? nullptr : p.shift + head * dim);
    if (network.trains_gain) {
      gain = four_of(tensors.Start(p.weights, kGain, first));
      gain_momenta = four_of(has_momentum ? tensors.Start(p.momenta, kGain, first) : nullptr);
    } else {
      gain = four_of(p.gain + head * dim);
    }
  }
  const int channel = head * dim + 4 * lane;
  const matrix_memory::StreamSegment of_stream = {.first = segment.first,
                                                  .end = segment.end,
                                                  .slot = segment.slot,
                                                  .memory = segment.memory,
                                                  .fresh = segment.fresh};
  matrix_memory::Filters filters;
  matrix_memory::Past past;
  matrix_memory::GateWeights gate_weights = {};
  if (warp < kVectors && lane < fours) {
    const Stream& s = t.vectors[warp];
    if (s.conv != nullptr) {
      filters = matrix_memory::Filters(s.conv + int64_t{channel} * s.width, s.width,
                                       s.conv_bias == nullptr ? nullptr : s.conv_bias + channel);
      past = matrix_memory::Past(s, of_stream, channel);
    }
  } else if (warp == kGatesWarp && lane < kGates && t.gates[lane].last == Last::kKeep) {
    gate_weights = matrix_memory::GateWeights(t.gates[lane].gate, head);
  }
  const int64_t in_entry = (int64_t{entry} * p.heads + head) * dim;
  const bool answers = rank == 0 && warp == kAnswerWarp && lane < rows_2.lanes() && rows_2.has;
  float* numbers = nullptr;
  if (p.held.capacity > 0) {
    numbers = NumbersOfHead(p, segment.slot, segment.memory, head);
    const int held = first ? 0 : static_cast<int>(__ldcg(numbers));
    if (held > 0) {
      const StepsOfHead steps(p, segment, head, rank, numbers, held);
      AddHeld(steps.of_parts[0], rows_1, w_1, s_1);
      AddHeld(steps.of_parts[1], rows_2, w_2, s_2);
    }
  }
  const int to = thread / fours, sent_four = thread % fours * 4;
  const float scale = p.rate_scale * (p.step_scale == nullptr ? 1.0f : p.step_scale[0]);
  // From here on all blocks have read what the first one writes: windows, numbers and gain.
  team.Enter();
  WaitForPreviousKernel();
  team.AwaitAll();

  if (warp < kVectors) {
    const Stream& s = t.vectors[warp];
    float4 v = {};
    if (lane < fours) {
      const int64_t row = s.entry_rows != nullptr ? s.entry_rows[entry] : entry;
      v = matrix_memory::LoadEither(s.rounded, s.x, row * s.channels + channel);
      if (s.conv != nullptr) {
        v = matrix_memory::Convolve(s, filters, of_stream, channel, past, v, /*keeps=*/rank == 0);
      }
      matrix_memory::ForEach(
          v, [&](float value) { return s.activation_scale * Activated(s.activation, value); });
    }
    if (s.last == Last::kL2Norm) {
      const float sum = WarpSum(v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w) + s.eps;
      const float factor = s.norm_scale / sqrtf(sum);
      matrix_memory::ForEach(v, [&](float value) { return value * factor; });
    }
    if (lane < fours) SaveFour(shared.vectors[warp] + 4 * lane, v);
  } else if (warp == kGatesWarp && lane < kGates) {
    const Stream& s = t.gates[lane];
    shared.gates[lane] = s.x != nullptr  ? GateOf(s, gate_weights, entry, head)
                         : lane == kKeep ? 1.0f
                                         : 0.0f;
  }
  __syncthreads();
  const StepGates gates = {.momentum = shared.gates[kMomentum], .keep = shared.gates[kKeep]};
  const float rate = scale * shared.gates[kRate];
  const float *const q = shared.vectors[kQ], *const k = shared.vectors[kK];

  // Hidden units, those of this warp's rows of W_2 by a lane each.
  const int unit_of_lane = rows_2.FoundBy(lane);
  const auto find_unit = [&](float* slope) {
    if (unit_of_lane >= part_2.rows) return 0.0f;
    float a = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) a += shared.partial[0][w * part_1.columns + unit_of_lane];
    return Activate(network.activation, a, slope);
  };
  const auto of_row = [&](float found, int i) {
    return __shfl_sync(kAllLanes, found, rows_2.FinderOf(i, lane));
  };
  // Finds hidden units z, and sums of their products with W_2.
  float z[kHeld];
  const auto multiply_units = [&](float* slope) {
    const float found = find_unit(slope);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) z[i] = of_row(found, i);
    float4 sum = {};
    rows_2.ForEach<kHeld>([&](int i, int) { AddScaled(sum, z[i], w_2[i]); });
    rows_2.SumRows(sum, dim, shared.partial[1]);
    __syncthreads();
  };
  const auto send = [&](int which, int rank_to) {
    float4 sum = {};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      AddScaled(sum, 1.0f, LoadFour(shared.partial[1] + w * dim + sent_four));
    }
    SendFour(sum, shared.outputs[which] + rank * dim + sent_four, shared.sent + which, rank_to);
  };
  // The network's outputs through its norm, and what they are divided by.
  const auto outputs_of = [&](int which, float* spread) {
    WaitForSent(shared.sent + which, 0);
    float4 sum = {};
    if (rows_2.has) {
#pragma unroll 4
      for (int from = 0; from < p.blocks; ++from) {
        AddScaled(sum, 1.0f, LoadFour(shared.outputs[which] + from * dim + rows_2.column));
      }
    }
    Four y(sum);
    *spread = 1;
    if (!normed) return y;
    const auto width = static_cast<float>(dim);
    const float mean = centred ? rows_2.Along(y.x[0] + y.x[1] + y.x[2] + y.x[3]) / width : 0.0f;
    float squares = 0;
    for (float& value : y.x) {
      value = rows_2.has ? value - mean : 0.0f;
      squares = fmaf(value, value, squares);
    }
    *spread = sqrtf(rows_2.Along(squares) / width + network.eps);
    for (float& value : y.x) value /= *spread;
    return y;
  };

  float4 sum = {};
  rows_1.ForEach<kHeld>([&](int i, int row) { AddScaled(sum, k[row], w_1[i]); });
  rows_1.SumRows(sum, part_1.columns, shared.partial[0]);
  __syncthreads();
  float slope = 0;
  multiply_units(&slope);
  if (to < p.blocks) send(0, to);

  // The error, and what a trained gain learns of it.
  const float offset = network.trains_gain ? network.gain_offset : 0.0f;
  float spread;
  const Four n = outputs_of(0, &spread);
  Four error;
  float loss = 0;
  if (rows_2.has) {
    const Four of_k(LoadFour(k + rows_2.column));
    const Four of_v(LoadFour(shared.vectors[kV] + rows_2.column));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float g = normed ? offset + gain.x[i] : 1.0f;
      const float out = normed ? of_k.x[i] + (n.x[i] * g + shift.x[i]) : n.x[i];
      const float difference = out - of_v.x[i], scaled = rate * difference;
      loss = fmaf(difference, difference, loss);
      error.x[i] = normed ? scaled * g : scaled;
      if (!network.trains_gain) continue;
      gain_momenta.x[i] = fmaf(gates.momentum, gain_momenta.x[i], -(scaled * n.x[i]));
      gain.x[i] = fmaf(gates.keep, gain.x[i], gain_momenta.x[i]);
    }
  }
  if (normed) {
    float mean = 0, along = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      mean += error.x[i];
      along = fmaf(error.x[i], n.x[i], along);
    }
    const auto width = static_cast<float>(dim);
    mean = centred ? rows_2.Along(mean) / width : 0.0f;
    along = rows_2.Along(along) / width;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      error.x[i] = rows_2.has ? (error.x[i] - mean - n.x[i] * along) / spread : 0.0f;
    }
  }
  if (p.loss != nullptr && rank == 0 && warp == kLossWarp) {
    loss = rows_2.Along(loss);
    if (lane == 0) p.loss[int64_t{entry} * p.heads + head] = loss;
  }
  const float4 delta_2 = error.all();
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int row = rows_2.first + i * rows_2.between;
    const float4& w = w_2[i];
    const float dot =
        rows_2.Along((w.x * delta_2.x + w.y * delta_2.y) + (w.z * delta_2.z + w.w * delta_2.w));
    const float delta = of_row(slope, i) * dot;
    if (rows_2.column == 0 && row < rows_2.rows) shared.delta[row] = delta;
  }
  const auto keep = [&](int l, int64_t at, const float4& w, const float4& s) {
    __stcs(reinterpret_cast<float4*>(tensors.InSlab(p.weights, l) + at), w);
    if (has_momentum) __stcs(reinterpret_cast<float4*>(tensors.InSlab(p.momenta, l) + at), s);
  };
  __syncthreads();

  sum = {};
  if (rows_1.has) {
    const float4 delta_1 = LoadFour(shared.delta + rows_1.column);
    rows_1.ForEach<kHeld>([&](int i, int row) {
      StepRow(k[row], delta_1, gates, w_1[i], s_1[i]);
      AddScaled(sum, q[row], w_1[i]);
    });
  }
  rows_1.SumRows(sum, part_1.columns, shared.partial[0]);
  rows_2.ForEach<kHeld>([&](int i, int) { StepRow(z[i], delta_2, gates, w_2[i], s_2[i]); });
  __syncthreads();
  float unused;
  multiply_units(&unused);
  if (to == 0) send(1, 0);
  Four answer_gate, out_norm;  // on their way with the outputs
  if (answers && t.y.data != nullptr) {
    answer_gate =
        Four(matrix_memory::LoadEither(t.rounded_gate, t.answer_gate, in_entry + rows_2.column));
    out_norm = Four(LoadFour(t.norm + rows_2.column));
  }
  // Nobody waits for what the slab gets.
  rows_1.ForEach<kHeld>([&](int i, int row) {
    keep(0, int64_t{row} * part_1.pitch + rows_1.column, w_1[i], s_1[i]);
  });
  rows_2.ForEach<kHeld>([&](int i, int row) {
    keep(1, int64_t{row} * part_2.pitch + rows_2.column, w_2[i], s_2[i]);
  });
  if (rank != 0 || warp != kAnswerWarp) return;

  float of_q;
  const Four read = outputs_of(1, &of_q);
  Four out;
  float squares = 0;
  if (rows_2.has) {
    const Four own(LoadFour(q + rows_2.column));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out.x[i] = normed ? own.x[i] + (read.x[i] * (offset + gain.x[i]) + shift.x[i]) : read.x[i];
    }
  }
  if (answers) SaveFour(p.out + in_entry + rows_2.column, out.all());
  if (t.y.data != nullptr) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out.x[i] *= Activated(t.activation, answer_gate.x[i]);
      squares = fmaf(out.x[i], out.x[i], squares);
    }
    // The lanes that answer are the first row's.
    const float factor = 1.0f / sqrtf(rows_2.Along(squares) / static_cast<float>(dim) + t.eps);
    if (answers) {
      const int64_t at = in_entry + rows_2.column;
      t.y.SaveTwo(at, {out.x[0] * factor * out_norm.x[0], out.x[1] * factor * out_norm.x[1]});
      t.y.SaveTwo(at + 2, {out.x[2] * factor * out_norm.x[2], out.x[3] * factor * out_norm.x[3]});
    }
  }
  if (numbers != nullptr && lane == 0) numbers[0] = 0;
  if (answers && network.trains_gain) {
    SaveFour(tensors.InSlab(p.weights, kGain) + rows_2.column, gain.all());
    if (has_momentum)
      SaveFour(tensors.InSlab(p.momenta, kGain) + rows_2.column, gain_momenta.all());
  }
}

int BitsOf(int columns) {
  int bits = 0;
  while (4 << bits < columns) ++bits;
  return bits;
}
// Rows of a thread.
int HeldRows(const Part& part, int bits) {
  const int at_once = kWarps * (kWarp >> bits);
  return (part.rows + at_once - 1) / at_once;
}

// Streams by what they feed; what has none is there as it is.
bool FindStreams(const NeuralMemoryArgs& memory, std::span<const MemoryStream> streams,
                 FusedToken& t) {
  const TensorView* const vectors[] = {&memory.q, &memory.k, &memory.v};
  const TensorView* const gates[] = {&memory.rate, &memory.momentum, &memory.keep};
  const auto plain = [](const TensorView& x) {
    Stream s = {};
    s.x = x.data;
    s.channels = x.empty() ? 0 : static_cast<int>(x.shape.elements() / x.shape[0]);
    s.activation = s.conv_activation = Activation::kIdentity;
    s.activation_scale = s.norm_scale = 1;
    return s;
  };
  for (int i = 0; i < kVectors; ++i) t.vectors[i] = plain(*vectors[i]);
  for (int i = 0; i < kGates; ++i) t.gates[i] = plain(*gates[i]);
  for (const MemoryStream& stream : streams) {
    Stream s;
    if (!MakeStream(stream, s)) return false;
    bool found = false;
    for (int i = 0; i < kVectors; ++i) {
      const bool known = s.last == Last::kNothing || s.last == Last::kL2Norm;
      if (vectors[i]->data != s.y || !known) continue;
      t.vectors[i] = s;
      found = true;
    }
    for (int i = 0; i < kGates; ++i) {
      const bool known = s.last == Last::kNothing || s.last == Last::kKeep;
      if (gates[i]->empty() || gates[i]->data != s.y || !known || s.conv != nullptr) continue;
      t.gates[i] = s;
      found = true;
    }
    if (!found) return false;
  }
  return true;
}

bool SetOutput(const NeuralMemoryArgs& memory, const NeuralMemoryOutputArgs& output,
               FusedToken& t) {
  const auto* const norm = std::get_if<RmsNormArgs>(&output.norm);
  if (norm == nullptr || norm->x.shape.rank != 2 || norm->x.shape[1] != memory.q.shape[2] ||
      output.product.a.data != memory.out.data || output.product.accumulate ||
      output.gate.scale != 1 || !output.gate.entry_rows.empty() ||
      !AreAligned(output.gate.x, norm->weight, norm->y)) {
    return false;
  }
  t.answer_gate = output.gate.x.data;
  t.rounded_gate = output.gate.x.dtype == DType::kBF16;
  t.activation = output.gate.activation;
  t.norm = norm->weight.as<const float>();
  t.eps = norm->eps;
  t.y = {norm->y.data, norm->y.dtype == DType::kBF16};
  return true;
}

}  // namespace

bool LaunchFusedToken(Device& device, const Params& p, const NeuralMemoryArgs& memory,
                      std::span<const MemoryStream> streams, const NeuralMemoryOutputArgs* output) {
  FusedToken t = {};
  t.memory = p;
  const int units = p.division.parts[0].columns;
  if (p.dim > kMostDim || units > kMostUnits || units % 4 != 0 ||
      !AreAligned(memory.out, memory.gain, memory.shift) || !FindStreams(memory, streams, t) ||
      (output != nullptr && !SetOutput(memory, *output, t))) {
    return false;
  }
  int held = 0;
  for (int l = 0; l < 2; ++l) {
    t.bits[l] = BitsOf(p.division.parts[l].columns);
    held = std::max(held, HeldRows(p.division.parts[l], t.bits[l]));
  }
  // A lane finds one unit of its warp.
  const int found = held <= 1 ? 1 : held <= 2 ? 2 : kMostHeldRows;
  if (held > kMostHeldRows || found * (kWarp >> t.bits[1]) > kWarp) return false;
  if (p.network.trains_gain &&
      !AreAligned(memory.weights.at[2], memory.momenta.at[2], memory.initial_weights.at[2],
                  memory.initial_momenta.at[2])) {
    return false;
  }
  const auto kernel = held <= 1   ? FusedTokenKernel<1>
                      : held <= 2 ? FusedTokenKernel<2>
                                  : FusedTokenKernel<kMostHeldRows>;
  LaunchOverlapping(device, "a memory's token", kernel, p.segments.count * p.heads * p.blocks,
                    kThreads, 0, p.blocks, t);
  return true;
}

}  // namespace mneme::cuda::neural_memory::resident
