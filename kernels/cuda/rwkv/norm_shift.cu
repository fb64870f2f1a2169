// LayerNorm and the token shift behind it, of segments of one entry: a block has an entry, whose
// channels stay in registers from the mean to the mixes.
#include <cstdint>

#include "kernels/cuda/common/fours.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/segments.cuh"
#include "kernels/cuda/rwkv/rwkv.h"

namespace mneme::cuda::rwkv {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kHeld = 4;  // accesses of a thread
constexpr int kMostDim = 4 * kHeld * kThreads;
constexpr int kAheadMixes = 6;  // whose weights come with the norm's

struct Problem {
  const float *x, *weight, *bias, *mix;
  float* normed;
  float eps;
  SegmentArrays segments;
  StateView last;
  int64_t entries;
  int dim, mixes;
  bool advance;
};

// A thread's weights for one of its accesses.
struct Weights {
  float4 norm, bias, mixes[kAheadMixes];

  __device__ Weights(const Problem& p, int channel) {
    norm = LoadFour(p.weight + channel);
    bias = p.bias != nullptr ? LoadFour(p.bias + channel) : float4{};
#pragma unroll
    for (int m = 0; m < kAheadMixes; ++m) {
      mixes[m] = m < p.mixes ? LoadFour(p.mix + int64_t{m} * p.dim + channel) : float4{};
    }
  }
  __device__ Weights() = default;
};

__device__ inline void Put(float (&to)[4], const float4& from) {
  to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
}

struct OwnSegment {
  int slot, memory, fresh;
};

// The segment of an entry, where all of them have one entry or none. Mostly its number is the
// entry's, which makes one latency of two. Past the cache of the multiprocessor, which may hold an
// earlier step's.
__device__ inline OwnSegment SegmentOfEntry(const SegmentArrays& segments, int entry) {
  const auto offset = [&](int s) { return __ldcg(segments.offsets + s); };
  const auto load = [&](int s) -> OwnSegment {
    return {.slot = __ldcg(segments.slots + s),
            .memory = __ldcg(segments.memories + s),
            .fresh = __ldcg(segments.fresh + s)};
  };
  if (entry < segments.count) {
    const int first = offset(entry), end = offset(entry + 1);
    const OwnSegment guess = load(entry);
    if (first == entry && end == entry + 1) return guess;
  }
  return load(LastSegment(segments, [&](int s) { return offset(s) <= entry; }));
}

// All but the entry itself is on its way while the kernel ahead still runs: weights, and what the
// token before left. Segments are those of IndexRows, known before a step's first layer begins.
template <typename Y>
__global__ void __launch_bounds__(kThreads)
    NormAndShiftKernel(const __grid_constant__ Problem p, Y* y) {
  __shared__ float sums[2][kWarps];
  LetNextKernelStart();
  const auto channel = [](int n) { return (n * kThreads + static_cast<int>(threadIdx.x)) * 4; };
  Weights ahead;
  if (channel(0) < p.dim) ahead = Weights(p, channel(0));
  const int entry = static_cast<int>(blockIdx.x);
  float x[kHeld][4], step[kHeld][4];
  OwnSegment segment = {.slot = -1, .memory = 0, .fresh = 0};
  if (entry < __ldcg(p.segments.offsets + p.segments.count)) {
    segment = SegmentOfEntry(p.segments, entry);
  }
  if (segment.slot < 0) {
    WaitForPreviousKernel();
    return;
  }
  float* const last = MemoryAt<float>(p.last, segment.slot, segment.memory);
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    const int i = channel(n);
    Put(step[n], i < p.dim && segment.fresh == 0 ? __ldcg(reinterpret_cast<const float4*>(last + i))
                                                 : float4{});
  }
  WaitForPreviousKernel();
  float sum = 0;
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    const int i = channel(n);
    Put(x[n], i < p.dim ? LoadFour(p.x + int64_t{entry} * p.dim + i) : float4{});
#pragma unroll
    for (float value : x[n]) sum += value;
  }
  const float mean = BlockSum<kThreads>(sum, sums[0]) / p.dim;
  float squares = 0;
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    if (channel(n) >= p.dim) break;
#pragma unroll
    for (float& value : x[n]) {
      value -= mean;
      squares += value * value;
    }
  }
  const float factor = 1.0f / sqrtf(BlockSum<kThreads>(squares, sums[1]) / p.dim + p.eps);
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    const int i = channel(n);
    if (i >= p.dim) break;
    if (n > 0) ahead = Weights(p, i);
    float weight[4], bias[4];
    Put(weight, ahead.norm);
    Put(bias, ahead.bias);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      x[n][c] = x[n][c] * factor * weight[c] + bias[c];
      step[n][c] -= x[n][c];
    }
    const float4 normed = {x[n][0], x[n][1], x[n][2], x[n][3]};
    if (p.normed != nullptr) SaveFour(p.normed + int64_t{entry} * p.dim + i, normed);
    if (p.advance) SaveFour(last + i, normed);
    const auto mix = [&](int m, const float4& shares) {
      float share[4];
      Put(share, shares);
#pragma unroll
      for (int c = 0; c < 4; ++c) share[c] = fmaf(share[c], step[n][c], x[n][c]);
      SaveFour(y + (m * p.entries + entry) * p.dim + i, {share[0], share[1], share[2], share[3]});
    };
#pragma unroll
    for (int m = 0; m < kAheadMixes; ++m) {
      if (m < p.mixes) mix(m, ahead.mixes[m]);
    }
    for (int m = kAheadMixes; m < p.mixes; ++m) {
      mix(m, LoadFour(p.mix + int64_t{m} * p.dim + i));
    }
  }
}

}  // namespace

bool NormAndShift(Device& device, const LayerNormArgs& norm, const TokenShiftArgs& shift) {
  const int64_t entries = norm.x.shape[0], dim = norm.x.shape[1];
  if (shift.segments.longest != 1 || norm.x.shape.rank != 2 || dim > kMostDim ||
      !shift.token_mix.empty() || shift.last.dtype != DType::kF32 || norm.y.dtype != DType::kF32 ||
      !InFours(dim, norm.x, norm.weight, norm.bias, norm.y, shift.mix, shift.last, shift.y)) {
    return false;
  }
  if (entries == 0 || shift.segments.count == 0) return true;
  const Problem problem = {.x = norm.x.as<const float>(),
                           .weight = norm.weight.as<const float>(),
                           .bias = norm.bias.as<const float>(),
                           .mix = shift.mix.as<const float>(),
                           .normed = norm.y.as<float>(),
                           .eps = norm.eps,
                           .segments = ArraysOf(shift.segments),
                           .last = shift.last,
                           .entries = entries,
                           .dim = static_cast<int>(dim),
                           .mixes = static_cast<int>(shift.mix.shape[0]),
                           .advance = shift.advance};
  const auto launch = [&](auto kernel, auto* y) {
    LaunchOverlapping(device, "LayerNorm and TokenShift", kernel, static_cast<int>(entries),
                      kThreads, 0, 1, problem, y);
  };
  if (shift.y.dtype == DType::kBF16) {
    launch(NormAndShiftKernel<__nv_bfloat16>, shift.y.as<__nv_bfloat16>());
  } else {
    launch(NormAndShiftKernel<float>, shift.y.as<float>());
  }
  return true;
}

}  // namespace mneme::cuda::rwkv
