// What the memories read, mixed, normed by head and gated: a warp to a head of a row.
#include <cstdint>

#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/decode/batch/batch.h"

namespace mneme::cuda::decode::batch {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

__device__ inline void Put(const MixArgs& p, int64_t at, float4 v) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(v.x, v.y);
  const __nv_bfloat162 high = __floats2bfloat162_rn(v.z, v.w);
  *reinterpret_cast<uint2*>(p.y + at) = {reinterpret_cast<const unsigned&>(low),
                                         reinterpret_cast<const unsigned&>(high)};
}

__device__ inline int64_t EntryOf(const MixArgs& p, int row, int column) {
  return row * p.columns + column;
}
__device__ inline float WeightOf(const MixArgs& p, int row, int column) {
  return column < p.top_k ? p.weights[row * p.top_k + column] : 1.0f;
}

// Heads of whole fours, at most kEach for a lane; all that is read is on its way before the first
// use.
template <int kEach>
__global__ void __launch_bounds__(kThreads) MixFours(const __grid_constant__ MixArgs p) {
  constexpr int kAtOnce = 4;  // memories
  const int lane = threadIdx.x % kWarp;
  const int fours = p.value_dim / 4, values = p.value_heads * p.value_dim;
  LetNextKernelStart();
  float4 norm[kEach];
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int i = lane + n * kWarp;
    norm[n] = i < fours ? reinterpret_cast<const float4*>(p.norm)[i] : float4{};
  }
  WaitForPreviousKernel();
  const int i = blockIdx.x * kWarps + threadIdx.x / kWarp;
  if (i >= p.rows * p.value_heads) return;
  const int row = i / p.value_heads, head = i % p.value_heads;
  const int64_t at = int64_t{row} * values + head * p.value_dim;

  float4 gate[kEach];
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int c = lane + n * kWarp;
    gate[n] =
        p.gate != nullptr && c < fours ? reinterpret_cast<const float4*>(p.gate + at)[c] : float4{};
  }
  float4 sum[kEach] = {};
  for (int first = 0; first < p.columns; first += kAtOnce) {
    float weight[kAtOnce];
    float4 read[kAtOnce][kEach];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const bool valid = first + j < p.columns;
      weight[j] = valid ? WeightOf(p, row, first + j) : 0.0f;
      const float* from =
          p.read + (valid ? EntryOf(p, row, first + j) : 0) * values + head * p.value_dim;
#pragma unroll
      for (int n = 0; n < kEach; ++n) {
        const int c = lane + n * kWarp;
        read[j][n] = valid && c < fours ? reinterpret_cast<const float4*>(from)[c] : float4{};
      }
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (first + j >= p.columns) break;
#pragma unroll
      for (int n = 0; n < kEach; ++n) {
        sum[n].x = fmaf(weight[j], read[j][n].x, sum[n].x);
        sum[n].y = fmaf(weight[j], read[j][n].y, sum[n].y);
        sum[n].z = fmaf(weight[j], read[j][n].z, sum[n].z);
        sum[n].w = fmaf(weight[j], read[j][n].w, sum[n].w);
      }
    }
  }
  float squares = 0;
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    squares = fmaf(sum[n].x, sum[n].x, fmaf(sum[n].y, sum[n].y, squares));
    squares = fmaf(sum[n].z, sum[n].z, fmaf(sum[n].w, sum[n].w, squares));
  }
  const float scale = rsqrtf(WarpSum(squares) / static_cast<float>(p.value_dim) + p.norm_eps);
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int c = lane + n * kWarp;
    if (c >= fours) continue;
    float4 factor = norm[n];
    if (p.gate != nullptr) {
      factor.x *= Silu(gate[n].x);
      factor.y *= Silu(gate[n].y);
      factor.z *= Silu(gate[n].z);
      factor.w *= Silu(gate[n].w);
    }
    Put(p, at + 4 * c,
        {sum[n].x * scale * factor.x, sum[n].y * scale * factor.y, sum[n].z * scale * factor.z,
         sum[n].w * scale * factor.w});
  }
}

// Any value_dim, mixed twice.
__global__ void __launch_bounds__(kThreads) MixAny(const __grid_constant__ MixArgs p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int i = blockIdx.x * kWarps + threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (i >= p.rows * p.value_heads) return;
  const int row = i / p.value_heads, head = i % p.value_heads;
  const int values = p.value_heads * p.value_dim;
  const int64_t at = int64_t{row} * values + head * p.value_dim;
  const auto mixed = [&](int c) {
    float sum = 0;
    for (int j = 0; j < p.columns; ++j) {
      sum = fmaf(WeightOf(p, row, j), p.read[EntryOf(p, row, j) * values + head * p.value_dim + c],
                 sum);
    }
    return sum;
  };
  float squares = 0;
  for (int c = lane; c < p.value_dim; c += kWarp) {
    const float value = mixed(c);
    squares = fmaf(value, value, squares);
  }
  const float scale = rsqrtf(WarpSum(squares) / static_cast<float>(p.value_dim) + p.norm_eps);
  for (int c = lane; c < p.value_dim; c += kWarp) {
    float value = mixed(c) * scale * p.norm[c];
    if (p.gate != nullptr) value *= Silu(p.gate[at + c]);
    p.y[at + c] = __float2bfloat16_rn(value);
  }
}

bool InFours(const MixArgs& p) {
  return p.value_dim % 4 == 0 && AreAligned(p.read, p.gate, p.norm, p.y);
}

}  // namespace

void LaunchMix(Device& device, const MixArgs& args) {
  const int blocks = (args.rows * args.value_heads + kWarps - 1) / kWarps;
  const auto launch = [&](auto kernel) {
    LaunchOverlapping(device, "mix of a decode step", kernel, blocks, kThreads, 0, 1, args);
  };
  if (!InFours(args) || args.value_dim > 4 * 4 * kWarp) return launch(MixAny);
  if (args.value_dim <= 4 * kWarp) return launch(MixFours<1>);
  if (args.value_dim <= 2 * 4 * kWarp) return launch(MixFours<2>);
  launch(MixFours<4>);
}

}  // namespace mneme::cuda::decode::batch
