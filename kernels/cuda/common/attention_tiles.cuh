// What kernels of attention on tensor cores share: tiles of tokens, of keys and values of bf16, and
// the softmax that goes over one tile of keys after the other (flash attention, arXiv:2205.14135).
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/mma.cuh"

namespace mneme::cuda {

constexpr float kLog2E = 1.4426950408889634f;
constexpr int kTileKeys = 64;

// Tile `index` of the step, each of up to `most` tokens of one row. By a whole warp.
__device__ inline bool FindTokens(const int32_t* row_offsets, int rows, int index, int most,
                                  int* in_row, int* token, int* tokens) {
  const int lane = threadIdx.x % kWarp;
  int before = 0;
  for (int base = 0; base < rows; base += kWarp) {
    const int row = base + lane;
    const int begin = row < rows ? row_offsets[row] : 0;
    const int count = row < rows ? row_offsets[row + 1] - begin : 0;
    const int tiles = (count + most - 1) / most;
    int sum = tiles;
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const int other = __shfl_up_sync(kAllLanes, sum, offset);
      if (lane >= offset) sum += other;
    }
    const unsigned beyond = __ballot_sync(kAllLanes, before + sum > index);
    if (beyond != 0) {
      const int at = __ffs(static_cast<int>(beyond)) - 1;
      const int skipped = (index - __shfl_sync(kAllLanes, before + sum - tiles, at)) * most;
      *in_row = base + at;
      *token = __shfl_sync(kAllLanes, begin, at) + skipped;
      *tokens = min(most, __shfl_sync(kAllLanes, count, at) - skipped);
      return true;
    }
    before += __shfl_sync(kAllLanes, sum, kWarp - 1);
  }
  return false;
}

// A tile's keys or values in shared memory: columns in groups of 64, of each the rows one behind
// the other, where DescribeMatrix (common/wgmma.cuh) wants 16-byte piece `piece` of a row.
constexpr int kGroupBytes = kTileKeys * 128;
__device__ inline uint32_t Place(int row, int piece, int group_bytes = kGroupBytes) {
  return piece / 8 * group_bytes + row * 128 + ((piece ^ row) % 8) * 16;
}

// The running maximum, total and sums of a thread's two queries, as powers of two.
template <int kDim>
struct Sums {
  float out[kDim / 8][4] = {};
  float largest[2] = {-INFINITY, -INFINITY}, total[2] = {};

  // Turns scores of kKeys keys, the first of them at place `first` of the block, into weights;
  // `factors` bring what was summed before to the new maximum. `scale` includes log2(e).
  template <int kKeys>
  __device__ void Weigh(const int2 (&seen)[2], int first, float scale,
                        float (&scores)[kKeys / 8][4], float (&factors)[2]) {
    const int lane = threadIdx.x % kWarp;
    const bool all =
        max(seen[0].x, seen[1].x) <= first && min(seen[0].y, seen[1].y) >= first + kKeys;
    float most[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int t = 0; t < kKeys / 8; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (!all) {
          const int j = first + t * 8 + 2 * (lane % 4) + e % 2;
          if (j < seen[e / 2].x || j >= seen[e / 2].y) scores[t][e] = -INFINITY;
        }
        most[e / 2] = fmaxf(most[e / 2], scores[t][e]);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      most[i] = fmaxf(most[i], __shfl_xor_sync(kAllLanes, most[i], 1));
      most[i] = fmaxf(most[i], __shfl_xor_sync(kAllLanes, most[i], 2));
      const float now = fmaxf(largest[i], scale * most[i]);
      const float base = now == -INFINITY ? 0.0f : now;
      factors[i] = exp2f(largest[i] - base);
      largest[i] = now;
      total[i] *= factors[i];
#pragma unroll
      for (int t = 0; t < kKeys / 8; ++t) {
#pragma unroll
        for (int e = 2 * i; e < 2 * i + 2; ++e) {
          scores[t][e] = exp2f(fmaf(scale, scores[t][e], -base));
          total[i] += scores[t][e];
        }
      }
    }
  }
  __device__ void Scale(const float (&factors)[2]) {
#pragma unroll
    for (int t = 0; t < kDim / 8; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) out[t][e] *= factors[e / 2];
    }
  }
  // Totals of whole queries, once at the end.
  __device__ void Finish() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      total[i] += __shfl_xor_sync(kAllLanes, total[i], 1);
      total[i] += __shfl_xor_sync(kAllLanes, total[i], 2);
    }
  }
};

// Weights of 16 keys as the left side of a product.
template <int kTiles>
__device__ inline void RoundWeights(const float (&weights)[kTiles][4], int sixteen,
                                    uint32_t (&a)[4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float* pair = weights[2 * sixteen + j / 2] + j % 2 * 2;
    a[j] = RoundPair(pair[0], pair[1], __nv_bfloat16());
  }
}

}  // namespace mneme::cuda
