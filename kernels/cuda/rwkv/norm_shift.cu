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

template <typename Y>
__global__ void __launch_bounds__(kThreads)
    NormAndShiftKernel(const __grid_constant__ Problem p, Y* y) {
  __shared__ float sums[2][kWarps];
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int entry = static_cast<int>(blockIdx.x);
  if (entry >= p.segments.offsets[p.segments.count]) return;
  const Segment segment(p.segments, SegmentOf(p.segments, entry));
  if (segment.slot < 0) return;
  float* const last = MemoryAt<float>(p.last, segment.slot, segment.memory);
  const auto channel = [](int n) { return (n * kThreads + static_cast<int>(threadIdx.x)) * 4; };
  float x[kHeld][4], step[kHeld][4];
  const auto put = [](float(&to)[4], float4 from) {
    to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
  };
  float sum = 0;
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    const int i = channel(n);
    const bool inside = i < p.dim;
    put(x[n], inside ? LoadFour(p.x + int64_t{entry} * p.dim + i) : float4{});
    put(step[n], inside && segment.fresh == 0 ? LoadFour(last + i) : float4{});
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
    float weight[4], bias[4];
    put(weight, LoadFour(p.weight + i));
    put(bias, p.bias != nullptr ? LoadFour(p.bias + i) : float4{});
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      x[n][c] = x[n][c] * factor * weight[c] + bias[c];
      step[n][c] -= x[n][c];
    }
    const float4 normed = {x[n][0], x[n][1], x[n][2], x[n][3]};
    if (p.normed != nullptr) SaveFour(p.normed + int64_t{entry} * p.dim + i, normed);
    if (p.advance) SaveFour(last + i, normed);
    for (int m = 0; m < p.mixes; ++m) {
      float share[4];
      put(share, LoadFour(p.mix + int64_t{m} * p.dim + i));
#pragma unroll
      for (int c = 0; c < 4; ++c) share[c] = fmaf(share[c], step[n][c], x[n][c]);
      SaveFour(y + (m * p.entries + entry) * p.dim + i, {share[0], share[1], share[2], share[3]});
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
