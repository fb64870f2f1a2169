// What decoded tokens go through between their projections and a memory, as one kernel: a warp
// takes a head of a stream, or some channels of one without heads, from the projection to the end.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <variant>

#include "kernels/cuda/common/blocks.h"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/rope.cuh"
#include "kernels/cuda/common/segments.cuh"
#include "kernels/cuda/matrix_memory/matrix_memory.h"
#include "kernels/cuda/matrix_memory/stream.cuh"
#include "kernels/cuda/neural_memory/keep_gate.cuh"

namespace mneme::cuda::matrix_memory {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;
constexpr int kMaxStreams = 8;
constexpr int kLaneSpan = 4 * kWarp;  // channels of a warp by one access of each lane
constexpr int kMaxSpans = 4;

struct Streams {
  Stream list[kMaxStreams];
  int count, units;  // units: warps of an entry
  bool known;        // as LaunchStreams() has it
  SegmentArrays segments;
};

// visit(four values, of which channel of the warp's the first one is). kSpans accesses of each lane
// take all of them.
template <int kSpans, typename Visit>
__device__ inline void ForEachFour(const Stream& s, float4 (&v)[kSpans], Visit visit) {
#pragma unroll
  for (int c = 0; c < kSpans; ++c) {
    const int i = c * kLaneSpan + 4 * static_cast<int>(threadIdx.x % kWarp);
    if (i < s.dim) visit(v[c], i);
  }
}

// Rotary positions.
template <int kSpans>
__device__ inline void Turn(const Stream& s, int64_t entry, float* shared, float4 (&v)[kSpans]) {
  const int half = s.dim / 2;
  const int64_t position = s.period > 0 ? s.positions[entry] % s.period : s.positions[entry];
  const auto angle = [&](int j, float* sin, float* cos) {
    double frequency = s.frequencies[j];
    if (s.exact_frequencies) frequency += s.frequencies[half + j];
    SinCosOfAngle(position, frequency, sin, cos);
  };
  if (s.interleaved) {
    const auto turn = [&](int j, float& a, float& b) {
      float sin, cos;
      angle(j, &sin, &cos);
      const float before = a;
      a = before * cos - b * sin;
      b = b * cos + before * sin;
    };
    ForEachFour(s, v, [&](float4& x, int i) {
      turn(i / 2, x.x, x.y);
      turn(i / 2 + 1, x.z, x.w);
    });
    return;
  }
  ForEachFour(s, v, [&](float4& x, int i) { SaveFour(shared + i, x); });
  __syncwarp();
  ForEachFour(s, v, [&](float4& x, int i) {
    float* const values[] = {&x.x, &x.y, &x.z, &x.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const bool upper = i + k >= half;
      const int j = upper ? i + k - half : i + k;
      float sin, cos;
      angle(j, &sin, &cos);
      const float other = shared[upper ? j : j + half];
      *values[k] = upper ? *values[k] * cos + other * sin : *values[k] * cos - other * sin;
    }
  });
  __syncwarp();
}

template <int kSpans>
__device__ inline void FinishHead(const Stream& s, int64_t entry, int first,
                                  const GateWeights (&gates)[kSpans][4], float* shared,
                                  float4 (&v)[kSpans]) {
  const int lane = threadIdx.x % kWarp;
  if (s.last == Last::kL2Norm || s.last == Last::kSumNorm) {
    const bool squares = s.last == Last::kL2Norm;
    float sum = 0;
    ForEachFour(s, v, [&](float4& x, int) {
      sum += squares ? x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w : x.x + x.y + x.z + x.w;
    });
    sum = WarpSum(sum) + s.eps;
    const float factor = s.norm_scale / sqrtf(sum);
    const float by = sum == 0 ? INFINITY : sum;
    ForEachFour(s, v, [&](float4& x, int) {
      ForEach(x, [&](float value) { return squares ? value * factor : value / by; });
    });
  } else if (s.last == Last::kRope) {
    Turn(s, entry, shared, v);
  } else if (s.last == Last::kDecay) {
#pragma unroll
    for (int c = 0; c < kSpans; ++c) {
      const int i = c * kLaneSpan + 4 * lane;
      if (i >= s.dim) continue;
      float4 complement;
      const auto gate = [&](float& value, int k, float& rest) {
        const Gate g = GateOf(s.gate, gates[c][k], value);
        value = g.log_decay;
        rest = g.complement;
      };
      gate(v[c].x, 0, complement.x);
      gate(v[c].y, 1, complement.y);
      gate(v[c].z, 2, complement.z);
      gate(v[c].w, 3, complement.w);
      if (s.complement != nullptr) {
        SaveFour(s.complement + entry * s.channels + first + i, complement);
      }
    }
  } else if (s.last == Last::kKeep) {
#pragma unroll
    for (int c = 0; c < kSpans; ++c) {
      if (c * kLaneSpan + 4 * lane >= s.dim) continue;
      const auto keep = [&](float x, int k) {
        const GateWeights& own = gates[c][k];
        return neural_memory::KeepOf(x, s.gate.a_log != nullptr, own.a_log, own.dt_bias);
      };
      v[c] = {keep(v[c].x, 0), keep(v[c].y, 1), keep(v[c].z, 2), keep(v[c].w, 3)};
    }
  }
}

template <int kSpans>
__global__ void __launch_bounds__(kThreads) StreamsKernel(const __grid_constant__ Streams p) {
  __shared__ float turned[kWarps][kSpans * kLaneSpan];
  const int lane = threadIdx.x % kWarp;
  const int64_t unit = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  const int number = static_cast<int>(unit / p.units);
  const int own = static_cast<int>(unit - int64_t{number} * p.units);
  int n = 0;
  while (n + 1 < p.count && own >= p.list[n + 1].first_unit) ++n;
  const Stream& s = p.list[n];
  const int first = (own - s.first_unit) * s.dim;
  // Weights are on their way while the kernel ahead still runs.
  Filters filters[kSpans];
  GateWeights gates[kSpans][4];
#pragma unroll
  for (int c = 0; c < kSpans; ++c) {
    const int i = c * kLaneSpan + 4 * lane;
    if (i >= s.dim) continue;
    if (s.conv != nullptr) {
      filters[c] = Filters(s.conv + int64_t{first + i} * s.width, s.width,
                           s.conv_bias == nullptr ? nullptr : s.conv_bias + first + i);
    }
    if (s.last == Last::kDecay || s.last == Last::kKeep) {
#pragma unroll
      for (int k = 0; k < 4; ++k) gates[c][k] = GateWeights(s.gate, first + i + k);
    }
  }
  StreamSegment segment = {};
  Past past[kSpans];
  bool active = false;
  const auto enter = [&] {
    LetNextKernelStart();  // the rule, which comes next, reads its state ahead
    if (number >= p.segments.count) return;
    segment = LoadSegment(p.segments, number);
    active = segment.slot >= 0 && segment.end != segment.first;
    if (!active || s.conv == nullptr) return;
#pragma unroll
    for (int c = 0; c < kSpans; ++c) {
      const int i = c * kLaneSpan + 4 * lane;
      if (i < s.dim) past[c] = Past(s, segment, first + i);
    }
  };
  if (p.known) enter();
  WaitForPreviousKernel();
  if (!p.known) enter();
  if (!active) return;
  const int64_t entry = segment.first;
  const int64_t row = s.entry_rows != nullptr ? s.entry_rows[entry] : entry;

  float4 v[kSpans];
#pragma unroll
  for (int c = 0; c < kSpans; ++c) {
    const int i = c * kLaneSpan + 4 * lane;
    v[c] = {};
    if (i < s.dim) v[c] = LoadEither(s.rounded, s.x, row * s.channels + first + i);
  }
#pragma unroll
  for (int c = 0; c < kSpans; ++c) {
    const int i = c * kLaneSpan + 4 * lane;
    if (i >= s.dim) continue;
    if (s.conv != nullptr) v[c] = Convolve(s, filters[c], segment, first + i, past[c], v[c]);
    ForEach(v[c], [&](float value) { return s.activation_scale * Activated(s.activation, value); });
  }
  FinishHead(s, entry, first, gates, turned[threadIdx.x / kWarp], v);
#pragma unroll
  for (int c = 0; c < kSpans; ++c) {
    const int i = c * kLaneSpan + 4 * lane;
    if (i < s.dim) SaveFour(s.y + entry * s.channels + first + i, v[c]);
  }
}

// Channels of a warp, of a stream of which each is by itself; 0: there is no such number.
int PieceOf(int channels) {
  for (int dim = kLaneSpan; dim >= 4; dim -= 4) {
    if (channels % dim == 0) return dim;
  }
  return 0;
}

}  // namespace

bool MakeStream(const MemoryStream& stream, Stream& s) {
  s = {};
  s.activation = s.conv_activation = Activation::kIdentity;
  s.activation_scale = s.norm_scale = 1;
  TensorView x, y, entry_rows;
  int head = 0;  // channels that belong together
  const auto follow = [&](const TensorView& from, const TensorView& rows, const TensorView& to) {
    if (x.empty()) x = from, entry_rows = rows;
    y = to;
  };
  if (stream.convolution.has_value()) {
    const ShortConvArgs& conv = *stream.convolution;
    follow(conv.x, conv.entry_rows, conv.y);
    s.conv = conv.weight.as<const float>();
    s.conv_bias = conv.bias.as<const float>();
    s.window = Field(conv.window);
    s.width = static_cast<int>(conv.weight.shape[1]);
    s.rounded_window = conv.window.dtype == DType::kBF16;
    s.conv_activation = conv.activation;
    if (s.width > kWidth || !AreAligned(conv.weight, conv.bias, conv.window)) {
      return false;
    }
  }
  if (stream.activation.has_value()) {
    const ActivateArgs& activation = *stream.activation;
    follow(activation.x, activation.entry_rows, activation.y);
    s.activation = activation.activation;
    s.activation_scale = activation.scale;
  }
  if (const auto* norm = std::get_if<L2NormArgs>(&stream.last)) {
    follow(norm->x, {}, norm->y);
    s.last = Last::kL2Norm;
    s.norm_scale = norm->scale;
    s.eps = norm->eps;
    head = static_cast<int>(norm->x.shape[2]);
  } else if (const auto* norm = std::get_if<SumNormArgs>(&stream.last)) {
    follow(norm->x, {}, norm->y);
    s.last = Last::kSumNorm;
    s.eps = norm->eps;
    head = static_cast<int>(norm->x.shape[2]);
  } else if (const auto* rope = std::get_if<RopeArgs>(&stream.last)) {
    follow(rope->x, {}, rope->y);
    s.last = Last::kRope;
    s.positions = rope->positions.as<const int64_t>();
    s.frequencies = rope->frequencies.as<const float>();
    s.exact_frequencies = rope->frequencies.shape.rank == 2;
    s.period = rope->period;
    s.interleaved = rope->interleaved;
    head = static_cast<int>(rope->x.shape[2]);
  } else if (const auto* decay = std::get_if<DecayGatesArgs>(&stream.last)) {
    follow(decay->x, decay->entry_rows, decay->log_decay);
    s.last = Last::kDecay;
    s.gate = GateRuleOf(*decay);
    s.complement = decay->complement.as<float>();
    if (!IsAligned(decay->complement)) return false;
  } else if (const auto* keep = std::get_if<KeepGateArgs>(&stream.last)) {
    follow(keep->x, {}, keep->y);
    s.last = Last::kKeep;
    s.gate = {.lower = nullptr,
              .a_log = keep->a_log.as<const float>(),
              .dt_bias = keep->dt_bias.as<const float>(),
              .dim = 1,
              .gate = {},
              .normalizer = 1,
              .least = 0,
              .lower_bound = 0};
  }
  s.channels = static_cast<int>(y.shape.elements() / std::max<int64_t>(y.shape[0], 1));
  s.dim = head > 0 ? head : PieceOf(s.channels);
  s.x = x.data;
  s.rounded = x.dtype == DType::kBF16;
  s.entry_rows = entry_rows.as<const int32_t>();
  s.y = y.as<float>();
  return s.dim > 0 && s.dim % 4 == 0 && s.dim <= kMaxSpans * kLaneSpan && AreAligned(x, y) &&
         y.dtype == DType::kF32;
}

bool LaunchStreams(Device& device, std::span<const MemoryStream> streams, const Segments& segments,
                   bool* launched, bool known) {
  Streams p = {};
  if (segments.longest != 1 || streams.size() > kMaxStreams) return false;
  int dim = 0;
  for (const MemoryStream& stream : streams) {
    Stream& s = p.list[p.count++];
    if (!MakeStream(stream, s)) return false;
    s.first_unit = p.units;
    p.units += s.channels / s.dim;
    dim = std::max(dim, s.dim);
  }
  p.segments = ArraysOf(segments);
  p.known = known;
  const int64_t warps = int64_t{p.segments.count} * p.units;
  *launched = warps > 0;
  if (warps > 0) {
    const auto kernel = dim <= kLaneSpan       ? StreamsKernel<1>
                        : dim <= 2 * kLaneSpan ? StreamsKernel<2>
                                               : StreamsKernel<kMaxSpans>;
    LaunchOverlapping(device, "streams of a decode step", kernel, BlocksFor(warps, kWarps),
                      kThreads, 0, 1, p);
  }
  return true;
}

bool MatrixMemoryStep(Device& device, const MatrixMemoryStepArgs& args) {
  bool launched = false;
  if (!LaunchStreams(device, args.streams, args.rule.segments, &launched, args.settled)) {
    return false;
  }
  MatrixMemory(device, args.rule, /*early=*/launched);
  return true;
}

}  // namespace mneme::cuda::matrix_memory
