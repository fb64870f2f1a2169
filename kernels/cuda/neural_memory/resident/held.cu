// One token of a memory that holds steps back (kernels/held_steps.h): a cluster of blocks is one
// head of one segment. W and S of the last fold are read, not written: what steps since then have
// added comes from their vectors. A block has some of the hidden units, W_2 and S_2 of these in
// shared memory, which are used three times; W_1 and S_1 go past once, for k and q together.
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/neural_memory/activate.cuh"
#include "kernels/cuda/neural_memory/keep_gate.cuh"
#include "kernels/cuda/neural_memory/resident/held.cuh"

namespace mneme::cuda::neural_memory::resident {
namespace {

struct HeldParams {
  Params memory;
  HeldLayer layer;
  HeldDivision division;
  StateView numbers, vectors;
  int capacity;
  bool folds_all;  // every step is written
  int later;       // blocks from one to the one whose matrices it brings into the L2 cache; or 0
};

// The weights' and momenta's factors since the last fold.
struct Factors {
  float kept = 1, moved = 0, slowed = 1;
};

__device__ inline float4 Mix(float a, const float4& x, float b, const float4& y) {
  return {a * x.x + b * y.x, a * x.y + b * y.y, a * x.z + b * y.z, a * x.w + b * y.w};
}

// Rows of a matrix that a thread has on their way at once.
constexpr int kRows = 4;

// Loads kRows rows of a share from `row` on, or zeros where there are none or no matrix.
__device__ inline void LoadRows(const float* from, int pitch, int row, int end,
                                float4 (&rows)[kRows]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    rows[i] = {};
    if (from != nullptr && row + i < end) {
      rows[i] = LoadFour(from + static_cast<int64_t>(row + i) * pitch);
    }
  }
}

// Whether threads of a warp have the same columns, of groups that are not divided among warps.
__device__ inline bool SumsInWarps(const Part& part) {
  const int fours = part.columns / 4;
  return fours < kWarp && kWarp % fours == 0;
}

// The share of x W and x S, as parts of `partial`, of one x or two.
template <int kVectors>
__device__ inline void ProductsOfShare(const float* const (&x)[kVectors],
                                       const Factors (&factors)[kVectors], const float* weights,
                                       const float* momenta, int pitch, const Part& part,
                                       const Share& share, float* partial) {
  float4 of_weights[kVectors] = {}, of_momenta[kVectors] = {};
  const int end = share.first + share.count;
  for (int row = share.first; row < end; row += kRows) {
    float4 w[kRows], s[kRows];
    LoadRows(weights, pitch, row, end, w);
    LoadRows(momenta, pitch, row, end, s);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (row + i >= end) break;
#pragma unroll
      for (int n = 0; n < kVectors; ++n) {
        const float value = x[n][row + i];
        AddScaled(of_weights[n], value, w[i]);
        AddScaled(of_momenta[n], value, s[i]);
      }
    }
  }
  // Groups of a warp that have the same columns add up.
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
  for (int n = 0; n < kVectors; ++n) {
    float4 sum = Mix(factors[n].kept, of_weights[n], factors[n].moved, of_momenta[n]);
    if (!SumsInWarps(part)) {
      SaveFour(partial + 4 * (n * kThreads + static_cast<int>(threadIdx.x)), sum);
      continue;
    }
    const int fours = part.columns / 4;
    for (int offset = kWarp / 2; offset >= fours; offset /= 2) {
      sum.x += __shfl_xor_sync(kAllLanes, sum.x, offset);
      sum.y += __shfl_xor_sync(kAllLanes, sum.y, offset);
      sum.z += __shfl_xor_sync(kAllLanes, sum.z, offset);
      sum.w += __shfl_xor_sync(kAllLanes, sum.w, offset);
    }
    if (lane < fours) {
      SaveFour(partial + 4 * n * kThreads + warp * part.columns + 4 * lane, sum);
    }
  }
}
// A column of what ProductsOfShare() left.
__device__ inline float SumOfPartial(const float* partial, const Part& part, int column) {
  const int count = SumsInWarps(part) ? kWarps : part.groups;
  float sum = 0;
#pragma unroll 4
  for (int g = 0; g < count; ++g) sum += partial[g * part.columns + column];
  return sum;
}

// dots[i] = by[i] x y_i of `count` vectors y, a warp each.
__device__ inline void DotsOfWarps(const float* x, const float* y, int width, int count,
                                   const float* by, float* dots) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int i = warp; i < count; i += kWarps) {
    float sum = 0;
    for (int j = lane; j < width; j += kWarp) sum = fmaf(x[j], y[i * width + j], sum);
    sum = WarpSum(sum);
    if (lane == 0) dots[i] = by[i] * sum;
  }
}
// sum_i dots[i] y_i, element j.
__device__ inline float SumOfSteps(const float* dots, const float* y, int width, int count, int j) {
  float sum = 0;
#pragma unroll 4
  for (int i = 0; i < count; ++i) sum = fmaf(dots[i], y[i * width + j], sum);
  return sum;
}

// Adds all steps to a share of W and S, which go to the slab.
__device__ inline void FoldShare(const HeldDivision& at, const float* shared, const Factors& next,
                                 const float* z, const float* delta, int count,
                                 const float* weights, const float* momenta, int pitch,
                                 const Part& part, const Share& share, float* to_weights,
                                 float* to_momenta) {
  const int end = share.first + share.count;
  for (int row = share.first; row < end; row += kRows) {
    float4 w[kRows], s[kRows];
    LoadRows(weights, pitch, row, end, w);
    LoadRows(momenta, pitch, row, end, s);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      w[i] = Mix(next.kept, w[i], next.moved, s[i]);
      s[i] = Mix(next.slowed, s[i], 0, s[i]);
    }
    for (int step = 0; step < count; ++step) {
      const float4 of_step = LoadFour(delta + step * part.columns + share.column);
      const float g = shared[at.next_g + step], momentum = shared[at.next_s + step];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (row + i >= end) break;
        const float value = z[step * part.rows + row + i];
        AddScaled(w[i], g * value, of_step);
        AddScaled(s[i], momentum * value, of_step);
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (row + i >= end) break;
      const int64_t to = static_cast<int64_t>(row + i) * part.pitch + share.column;
      __stcs(reinterpret_cast<float4*>(to_weights + to), w[i]);
      __stcs(reinterpret_cast<float4*>(to_momenta + to), s[i]);
    }
  }
}

__device__ inline float4 LoadEither(bool rounded, const void* p, int64_t at) {
  return rounded ? LoadFour(static_cast<const __nv_bfloat16*>(p) + at)
                 : LoadFour(static_cast<const float*>(p) + at);
}
__device__ inline void SaveEither(bool rounded, void* p, int64_t at, const float4& x) {
  if (rounded) {
    SaveFour(static_cast<__nv_bfloat16*>(p) + at, x);
  } else {
    SaveFour(static_cast<float*>(p) + at, x);
  }
}
template <typename F>
__device__ inline float4 OfEach(const float4& x, const F& f) {
  return {f(x.x), f(x.y), f(x.z), f(x.w)};
}

// Four channels of a token on their way to the memory, a warp to a head of q, k or v: what does not
// depend on the kernel ahead is loaded by Prepare().
class Way {
 public:
  __device__ Way(const HeldInput& input, const Segment& segment, int heads, int dim, int head)
      : in_(input),
        pitch_(heads * dim),
        channel_(head * dim + 4 * static_cast<int>(threadIdx.x % kWarp)),
        has_(4 * static_cast<int>(threadIdx.x % kWarp) < dim),
        fresh_(segment.fresh != 0),
        window_(input.conv == nullptr
                    ? nullptr
                    : MemoryAt<std::byte>(input.window, segment.slot, segment.memory)) {}

  __device__ void Prepare() {
    if (!has_ || in_.conv == nullptr) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) filters_[i] = LoadFour(in_.conv + (channel_ + i) * 4);
    bias_ = in_.bias == nullptr ? float4{} : LoadFour(in_.bias + channel_);
#pragma unroll
    for (int j = 0; j < 3; ++j) past_[j] = Past(j);
  }

  // Leaves the token in `to`, and what its window is to take in, in `raw`.
  __device__ void Take(int entry, float* to, float* raw) const {
    const int own = 4 * static_cast<int>(threadIdx.x % kWarp);
    float4 x = {};
    if (has_) {
      x = LoadEither(in_.rounded, in_.x, int64_t{entry} * pitch_ + channel_);
      if (in_.conv != nullptr) {
        if (in_.rounded_window) {
          x = OfEach(x, [](float value) { return ToFloat(FromFloat<__nv_bfloat16>(value)); });
        }
        SaveFour(raw + own, x);
        const auto sum = [](const float4& w, float b, float p0, float p1, float p2, float now) {
          return fmaf(w.w, now, fmaf(w.z, p2, fmaf(w.y, p1, fmaf(w.x, p0, b))));
        };
        x = {sum(filters_[0], bias_.x, past_[0].x, past_[1].x, past_[2].x, x.x),
             sum(filters_[1], bias_.y, past_[0].y, past_[1].y, past_[2].y, x.y),
             sum(filters_[2], bias_.z, past_[0].z, past_[1].z, past_[2].z, x.z),
             sum(filters_[3], bias_.w, past_[0].w, past_[1].w, past_[2].w, x.w)};
      }
      if (in_.silu) x = OfEach(x, [](float value) { return Silu(value); });
    }
    if (in_.normed) {
      const float squares = WarpSum(x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w);
      const float factor = in_.scale / sqrtf(squares + in_.eps);
      x = OfEach(x, [=](float value) { return value * factor; });
    }
    if (has_) SaveFour(to + own, x);
  }

  // The window takes the token in, when all blocks have read it.
  __device__ void Remember(const float* raw) const {
    if (!has_ || in_.conv == nullptr) return;
    const float4 second = Past(1), third = Past(2);
    const auto keep = [&](int j, const float4& x) {
      SaveEither(in_.rounded_window, window_, int64_t{j} * pitch_ + channel_, x);
    };
    keep(0, second);
    keep(1, third);
    keep(2, LoadFour(raw + 4 * static_cast<int>(threadIdx.x % kWarp)));
  }

 private:
  __device__ float4 Past(int j) const {
    if (fresh_) return {};
    return LoadEither(in_.rounded_window, window_, int64_t{j} * pitch_ + channel_);
  }

  const HeldInput& in_;
  const int pitch_, channel_;
  const bool has_, fresh_;
  std::byte* const window_;
  float4 filters_[4], bias_, past_[3];
};

// Asks for what a later block reads, by one warp.
__device__ inline void FetchLater(const HeldParams& h) {
#if __CUDA_ARCH__ >= 900
  const Params& p = h.memory;
  const unsigned block = blockIdx.x + static_cast<unsigned>(h.later);
  if (block >= gridDim.x) return;
  const int unit = static_cast<int>(block) / p.blocks, head = unit % p.heads;
  const int rank = static_cast<int>(block) % p.blocks;
  const Segment segment(p.segments, unit / p.heads);
  if (segment.slot < 0 || segment.end - segment.first != 1) return;
  const TensorsOfHead<2> tensors(p, segment, head, rank);
  const auto fetch = [](const float* from, int floats) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(4 * floats)
                 : "memory");
  };
  const Part &part_1 = h.division.parts[0], &part_2 = h.division.parts[1];
  const int lane = threadIdx.x % kWarp;
  for (const Copy* copy : {&p.weights, &p.momenta}) {
    const float* const first = tensors.InSlab(*copy, 0);
    if (p.blocks == 1) {
      if (lane == 0) fetch(first, part_1.rows * part_1.columns);
    } else {
      for (int row = lane; row < part_1.rows; row += kWarp) {
        fetch(first + static_cast<int64_t>(row) * part_1.pitch, part_1.columns);
      }
    }
    if (lane == 0) fetch(tensors.InSlab(*copy, 1), part_2.rows * part_2.columns);
  }
#endif
}

template <bool kAhead>
__global__ void __launch_bounds__(kThreads, 2)
    HeldStepsKernel(const __grid_constant__ HeldParams h) {
  extern __shared__ float4 shared_fours[];
  const Params& p = h.memory;
  LetNextKernelStart();
  if (!p.early) WaitForPreviousKernel();
  const Team team;
  const int unit = static_cast<int>(blockIdx.x) / p.blocks, head = unit % p.heads;
  const Segment segment(p.segments, unit / p.heads);
  if (segment.slot < 0 || segment.end - segment.first != 1) return WaitForPreviousKernel();

  const MemoryNetwork& network = p.network;
  const HeldDivision& at = h.division;
  const TensorsOfHead<2> tensors(p, segment, head, team.rank());
  float* const shared = reinterpret_cast<float*>(shared_fours);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const int dim = p.dim, rank = team.rank(), units = at.parts[0].columns;
  const int hidden = p.divided, of_step = static_cast<int>(HeldVectors(dim, hidden));
  const int entry = segment.first;
  const bool normed = network.norm != MemoryNetwork::Norm::kNone;
  float* const numbers =
      MemoryAt<float>(h.numbers, segment.slot, segment.memory) + head * HeldNumbers(h.capacity);
  float* const vectors = MemoryAt<float>(h.vectors, segment.slot, segment.memory) +
                         int64_t{head} * h.capacity * of_step;
  const float4 first_numbers = LoadFour(numbers);
  const bool fresh = p.positions[entry] == p.first_position;
  const int count = fresh ? 0 : static_cast<int>(first_numbers.x);
  const Factors before =
      count == 0
          ? Factors()
          : Factors{.kept = first_numbers.y, .moved = first_numbers.z, .slowed = first_numbers.w};
  const Part &part_1 = at.parts[0], &part_2 = at.parts[1];
  const Share share_1(part_1), share_2(part_2);
  float* const partial = shared + at.partial;

  const float old_g = thread < count ? numbers[4 + thread] : 0.0f;
  const float old_s = thread < count ? numbers[4 + h.capacity + thread] : 0.0f;
  // Vectors of a step in its place: a block has those of its own units.
  const auto for_each_vector = [&](int step, auto visit) {
    const int64_t first = int64_t{step} * of_step;
    visit(first, at.keys + step * dim, dim);
    visit(first + dim, at.errors + step * dim, dim);
    visit(first + 2 * dim + rank * units, at.z + step * units, units);
    visit(first + 2 * dim + hidden + rank * units, at.deltas + step * units, units);
  };
  for (int step = warp; step < count; step += kWarps) {
    for_each_vector(step, [&](int64_t from, int to, int width) {
      for (int i = 4 * lane; i < width; i += 4 * kWarp) {
        CopyAsync16(shared + to + i, vectors + from + i);
      }
    });
  }
  // W_1 of the block begins at its first column, which its pitch passes.
  const float* const from_weights[] = {tensors.Start(p.weights, 0, fresh),
                                       tensors.Start(p.weights, 1, fresh)};
  const float* const from_momenta[] = {tensors.Start(p.momenta, 0, fresh),
                                       tensors.Start(p.momenta, 1, fresh)};
  const auto fetch = [&](const float* from, const Part& part, const Share& share, int to) {
    if (from != nullptr) {
      FetchShare(from, part, share, shared + to);
      return;
    }
    for (int i = thread; i < part.rows * part.columns / 4; i += kThreads) {
      SaveFour(shared + to + 4 * i, {});
    }
  };
  if constexpr (kAhead) {
    fetch(from_weights[0], part_1, share_1, at.weights[0]);
    fetch(from_momenta[0], part_1, share_1, at.momenta[0]);
  }
  fetch(from_weights[1], part_2, share_2, at.weights[1]);
  fetch(from_momenta[1], part_2, share_2, at.momenta[1]);
  CommitCopies();
  if (warp == kWarps - 1 && h.later > 0) FetchLater(h);

  for (int i = thread; normed && i < dim; i += kThreads) {
    shared[at.shift + i] = p.shift == nullptr ? 0.0f : p.shift[head * dim + i];
    if (!network.trains_gain) {
      shared[at.gain + i] = p.gain[head * dim + i];
      continue;
    }
    constexpr int kGain = TensorsOfHead<2>::kGain;
    const float* const momenta = tensors.Start(p.momenta, kGain, fresh);
    shared[at.gain + i] = tensors.Start(p.weights, kGain, fresh)[i];
    shared[at.gain_momenta + i] = momenta == nullptr ? 0.0f : momenta[i];
  }
  const HeldLayer& layer = h.layer;
  constexpr int kWays = 3;
  Way way(layer.input[warp < kWays ? warp : 0], segment, p.heads, dim, head);
  if (layer.inputs && warp < kWays) way.Prepare();
  WaitForPreviousKernel();

  const int64_t in_entries = (int64_t{entry} * p.heads + head) * dim;
  const int64_t gate = int64_t{entry} * p.heads + head;
  float *const q = shared + at.q, *const k = shared + at.keys + count * dim,
               *const v = shared + at.v;
  float* const raw = shared + at.raw + warp * dim;
  StepGates gates = {.momentum = p.momentum[gate], .keep = p.keep == nullptr ? 1.0f : p.keep[gate]};
  float rate = p.rate[gate];
  if (layer.inputs) {
    if (warp < kWays) way.Take(entry, warp == 0 ? q : warp == 1 ? k : v, raw);
    gates.momentum = Sigmoid(gates.momentum);
    const bool exponential = layer.a_log != nullptr;
    gates.keep =
        neural_memory::KeepOf(gates.keep, exponential, exponential ? layer.a_log[head] : 0.0f,
                              exponential ? layer.dt_bias[head] : 0.0f);
    rate = Sigmoid(rate);
  } else {
    for (int i = thread; i < 3 * dim / 4; i += kThreads) {
      const int which = i / (dim / 4), four = i % (dim / 4) * 4;
      const float* const from = which == 0 ? p.q : which == 1 ? p.k : p.v;
      SaveFour((which == 0 ? q : which == 1 ? k : v) + four, LoadFour(from + in_entries + four));
    }
  }
  // Windows are read, and outputs may come.
  team.Enter();
  rate *= (p.step_scale == nullptr ? 1.0f : p.step_scale[0]) * p.rate_scale;
  Factors after = {.slowed = gates.momentum * before.slowed};
  after.moved = gates.keep * before.moved + after.slowed;
  after.kept = gates.keep * before.kept;
  if (thread <= count) {
    const float s = thread == count ? -1.0f : gates.momentum * old_s;
    shared[at.g + thread] = old_g;
    shared[at.next_s + thread] = s;
    shared[at.next_g + thread] = thread == count ? -1.0f : fmaf(gates.keep, old_g, s);
  }
  AwaitCopies();
  __syncthreads();

  // Layer 1 of k as it was, and of q as it will be, less what this token adds.
  const float *w_1 = from_weights[0], *s_1 = from_momenta[0];
  int pitch_1 = part_1.pitch;
  if constexpr (kAhead) {
    w_1 = shared + at.weights[0];
    s_1 = shared + at.momenta[0];
    pitch_1 = part_1.columns;
  }
  const auto own = [](const float* matrix, const Share& share) {
    return matrix == nullptr ? nullptr : matrix + share.column;
  };
  ProductsOfShare<2>({k, q}, {before, after}, own(w_1, share_1), own(s_1, share_1), pitch_1, part_1,
                     share_1, partial);
  DotsOfWarps(k, shared + at.keys, dim, count, shared + at.g, shared + at.dots[0]);
  DotsOfWarps(q, shared + at.keys, dim, count + 1, shared + at.next_g, shared + at.dots[1]);
  __syncthreads();
  float* const z = shared + at.z + count * units;
  for (int i = thread; i < 2 * units; i += kThreads) {
    const bool of_q = i >= units;
    const int j = of_q ? i - units : i;
    const float a = SumOfPartial(partial + (of_q ? 4 * kThreads : 0), part_1, j) +
                    SumOfSteps(shared + at.dots[of_q ? 1 : 0], shared + at.deltas, units, count, j);
    if (of_q) {
      shared[at.of_q + j] = a;
    } else {
      float slope;
      z[j] = Activate(network.activation, a, &slope);
      shared[at.slope + j] = slope;
    }
  }
  __syncthreads();

  const float* const w_2 = shared + at.weights[1];
  const float* const s_2 = shared + at.momenta[1];
  // This block's part of the network's outputs, to all blocks.
  const auto send_outputs = [&](const float* x, const Factors& factors, const float* g, int steps,
                                float* dots, float* outputs) {
    ProductsOfShare<1>({x}, {factors}, w_2 + share_2.column, s_2 + share_2.column, part_2.columns,
                       part_2, share_2, partial);
    DotsOfWarps(x, shared + at.z, units, steps, g, dots);
    __syncthreads();
    for (int i = thread; i < dim; i += kThreads) {
      const float y =
          SumOfPartial(partial, part_2, i) + SumOfSteps(dots, shared + at.errors, dim, steps, i);
#pragma unroll 1
      for (int to = 0; to < p.blocks; ++to) *team.Of(to, outputs + rank * dim + i) = y;
    }
    team.Sync();
  };
  team.AwaitAll();
  send_outputs(z, before, shared + at.g, count, shared + at.dots[2], shared + at.outputs[0]);

  float* const error = shared + at.errors + count * dim;
  float *const gain = shared + at.gain, *const gain_momenta = shared + at.gain_momenta;
  if (warp == 0) {
    const float loss = ErrorOfWarp(p, shared + at.outputs[0], p.blocks, dim, k, v, gain,
                                   shared + at.shift, rate, error);
    for (int i = lane; network.trains_gain && i < dim; i += kWarp) {
      gain_momenta[i] = fmaf(gates.momentum, gain_momenta[i], -v[i]);
      gain[i] = fmaf(gates.keep, gain[i], gain_momenta[i]);
    }
    if (p.loss != nullptr && rank == 0 && lane == 0) p.loss[gate] = loss;
  }
  if (layer.inputs && rank == 0 && warp >= kWarps - kWays) {
    const int which = warp - (kWarps - kWays);
    Way(layer.input[which], segment, p.heads, dim, head).Remember(shared + at.raw + which * dim);
  }
  __syncthreads();

  // delta_1, of rows by eight lanes each; rows are a multiple of a warp's four.
  float* const delta_1 = shared + at.deltas + count * units;
  constexpr int kRowLanes = 8;
  for (int row = thread / kRowLanes; row < units; row += kThreads / kRowLanes) {
    float of_weights = 0, of_momenta = 0;
    for (int o = thread % kRowLanes * 4; o < dim; o += 4 * kRowLanes) {
      const float4 w = LoadFour(w_2 + row * dim + o), s = LoadFour(s_2 + row * dim + o);
      const float4 e = LoadFour(error + o);
      of_weights += (w.x * e.x + w.y * e.y) + (w.z * e.z + w.w * e.w);
      of_momenta += (s.x * e.x + s.y * e.y) + (s.z * e.z + s.w * e.w);
    }
    float sum = before.kept * of_weights + before.moved * of_momenta;
#pragma unroll
    for (int offset = kRowLanes / 2; offset > 0; offset /= 2) {
      sum += __shfl_xor_sync(kAllLanes, sum, offset);
    }
    if (thread % kRowLanes == 0) delta_1[row] = sum;
  }
  DotsOfWarps(error, shared + at.errors, dim, count, shared + at.g, shared + at.dots[3]);
  __syncthreads();
  float* const z_of_q = shared + at.z_of_q;
  for (int i = thread; i < units; i += kThreads) {
    const float sum = delta_1[i] + SumOfSteps(shared + at.dots[3], shared + at.z, units, count, i);
    const float delta = shared[at.slope + i] * sum;
    delta_1[i] = delta;
    float slope;
    z_of_q[i] = Activate(network.activation,
                         fmaf(shared[at.dots[1] + count], delta, shared[at.of_q + i]), &slope);
  }
  __syncthreads();
  send_outputs(z_of_q, after, shared + at.next_g, count + 1, shared + at.dots[4],
               shared + at.outputs[1]);

  const auto gated = [&](int i) {
    return layer.rounded_gate
               ? ToFloat(static_cast<const __nv_bfloat16*>(layer.gate)[in_entries + i])
               : static_cast<const float*>(layer.gate)[in_entries + i];
  };
  float squares = 0;
  if (rank == 0 && warp == 0) {
    float* const n = shared + at.n;
    const float offset = network.trains_gain ? network.gain_offset : 0.0f;
    NormOfWarp(network, dim, shared + at.outputs[1], p.blocks, dim, n);
    for (int i = lane; i < dim; i += kWarp) {
      const float out = normed ? q[i] + (n[i] * (offset + gain[i]) + shared[at.shift + i]) : n[i];
      p.out[in_entries + i] = out;
      if (layer.gate != nullptr) {
        n[i] = out * Silu(gated(i));
        squares = fmaf(n[i], n[i], squares);
      }
      if (network.trains_gain) {
        constexpr int kGain = TensorsOfHead<2>::kGain;
        tensors.InSlab(p.weights, kGain)[i] = gain[i];
        tensors.InSlab(p.momenta, kGain)[i] = gain_momenta[i];
      }
    }
  }
  if (rank == 0 && warp == 0 && layer.gate != nullptr) {
    const float* const n = shared + at.n;
    const float factor = 1.0f / sqrtf(WarpSum(squares) / static_cast<float>(dim) + layer.eps);
    for (int i = lane; i < dim; i += kWarp) {
      const float y = n[i] * factor * layer.norm[i];
      if (layer.rounded_y) {
        static_cast<__nv_bfloat16*>(layer.y)[in_entries + i] = FromFloat<__nv_bfloat16>(y);
      } else {
        static_cast<float*>(layer.y)[in_entries + i] = y;
      }
    }
  }
  const bool folds = h.folds_all || fresh || count == h.capacity;
  if (folds) {
    FoldShare(at, shared, after, shared + at.keys, shared + at.deltas, count + 1, own(w_1, share_1),
              own(s_1, share_1), pitch_1, part_1, share_1, tensors.InSlab(p.weights, 0),
              tensors.InSlab(p.momenta, 0));
    FoldShare(at, shared, after, shared + at.z, shared + at.errors, count + 1, w_2 + share_2.column,
              s_2 + share_2.column, part_2.columns, part_2, share_2, tensors.InSlab(p.weights, 1),
              tensors.InSlab(p.momenta, 1));
  } else if (warp == 1) {
    for_each_vector(count, [&](int64_t to, int from, int width) {
      for (int i = lane; i < width; i += kWarp) vectors[to + i] = shared[from + i];
    });
  }
  // All blocks have read the numbers.
  if (rank == 0 && warp == 2) {
    if (lane == 0) numbers[0] = folds ? 0.0f : static_cast<float>(count + 1);
    if (!folds) {
      if (lane == 1) numbers[1] = after.kept;
      if (lane == 2) numbers[2] = after.moved;
      if (lane == 3) numbers[3] = after.slowed;
      for (int i = lane; i <= count; i += kWarp) {
        numbers[4 + i] = shared[at.next_g + i];
        numbers[4 + h.capacity + i] = shared[at.next_s + i];
      }
    }
  }
}

}  // namespace

void LaunchHeldSteps(Device& device, const Plan& plan, const Params& p, const HeldMemoryArgs& args,
                     const HeldLayer& layer) {
  const HeldSteps& held = args.held;
  const bool ahead = plan.held != 0;
  const int blocks = p.segments.count * p.heads * plan.blocks;
  const int later = device.multiprocessors();
  HeldParams h = {.memory = p,
                  .layer = layer,
                  .division = HeldDivision(p.dim, p.divided, plan.blocks, held.capacity, ahead),
                  .numbers = held.numbers,
                  .vectors = held.vectors,
                  .capacity = held.capacity,
                  .folds_all = !args.always_holds && blocks <= device.multiprocessors(),
                  .later = blocks > 2 * device.multiprocessors() ? later : 0};
  h.memory.division.parts[0] = h.division.parts[0];
  h.memory.division.parts[1] = h.division.parts[1];
  LaunchOverlapping(device, "steps of a neural memory that are held back",
                    ahead ? HeldStepsKernel<true> : HeldStepsKernel<false>, blocks, kThreads,
                    plan.shared_bytes, plan.blocks, h);
}

}  // namespace mneme::cuda::neural_memory::resident
