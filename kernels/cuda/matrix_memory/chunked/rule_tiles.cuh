// What the kernels that prepare chunks of matrix memories share: from a chunk's rows of f32 to
// tiles, exponentials, and which pairs of entries are whose.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/exponentials.cuh"
#include "kernels/cuda/matrix_memory/chunked/mma.cuh"
#include "kernels/cuda/matrix_memory/chunked/plan.h"
#include "kernels/cuda/matrix_memory/chunked/planning.cuh"

namespace mneme::cuda::matrix_memory::chunked {

constexpr int kSub = 16;  // entries of a sub-chunk
constexpr int kSubs = kChunk / kSub;
constexpr int kSlice = 64;       // keys or values that a block looks at together
constexpr int kSlicePitch = 68;  // floats between rows of a slice in shared memory
constexpr float kLog2E = 1.4426950408889634f;

// A log decay in units of log 2.
__device__ inline float Log2Decay(float log_decay) {
  return fmaxf(log_decay, kLeastLogDecay) * kLog2E;
}

__device__ inline uint4 PackEight(const float (&x)[8]) {
  return {PackPair<__nv_bfloat16>(x[0], x[1]), PackPair<__nv_bfloat16>(x[2], x[3]),
          PackPair<__nv_bfloat16>(x[4], x[5]), PackPair<__nv_bfloat16>(x[6], x[7])};
}
__device__ inline void LoadEight(const float* from, float (&x)[8]) {
  *reinterpret_cast<float4*>(x) = *reinterpret_cast<const float4*>(from);
  *reinterpret_cast<float4*>(x + 4) = *reinterpret_cast<const float4*>(from + 4);
}

// Decays of eight keys from `column` on, `total` being the log decays of whole sub-chunks and
// `local` that from the start of sub-chunk `sub` to an entry in it: adds to `before` those of
// earlier sub-chunks, and to `after` what follows the entry in the chunk.
__device__ inline void AddDecaysAround(const float (&total)[kSubs][kSlice], int column, int sub,
                                       const float (&local)[8], float (&before)[8],
                                       float (&after)[8]) {
#pragma unroll
  for (int s = 0; s < kSubs; ++s) {
    float whole[8];
    LoadEight(total[s] + column, whole);
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      if (s < sub) before[c] += whole[c];
      if (s == sub) after[c] += fminf(whole[c] - local[c], 0.0f);
      if (s > sub) after[c] += whole[c];
    }
  }
}

// Sub-chunks of the entries of a chunk and of earlier ones they meet, by warp.
__device__ constexpr int LaterSub(int warp) { return warp == 0 ? 1 : warp < 3 ? 2 : 3; }
__device__ constexpr int EarlierSub(int warp) {
  return warp == 0 ? 0 : warp < 3 ? warp - 1 : warp - 3;
}

// Pairs of entries of a sub-chunk that a lane sums: rows `lane / 4` and 8 more, columns `lane % 4`
// and 4, 8, 12 more, without those that are above the diagonal in any lane.
__device__ constexpr int PairRow(int pair) { return pair < 2 ? 0 : 8; }
__device__ constexpr int PairColumn(int pair) { return pair < 2 ? 4 * pair : 4 * (pair - 2); }
constexpr int kOwnPairs = 6;

// An element of a tile of bf16.
__device__ inline void StoreProduct(uint8_t* tile, int i, int j, float x) {
  *reinterpret_cast<__nv_bfloat16*>(tile + TileOffset(i, j / 8) + 2 * (j % 8)) =
      __float2bfloat16_rn(x);
}

}  // namespace mneme::cuda::matrix_memory::chunked
