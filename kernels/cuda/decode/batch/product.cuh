// What a block of decode/batch/product.cu works on.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/decode/batch/batch.h"

namespace mneme::cuda::decode::batch {

// What a block works on: half of its rows from each of two matrices, or all from one.
struct Unit {
  const __nv_bfloat16* weights[2];  // of each half of the rows
  int rows[2];                      // that there are
  int first;                        // output feature
  bool pair, routed;
  int group, tile;  // of entries
};

template <int kOutputs>
__device__ inline Unit FindUnit(const ManyProducts& p, const ManyProduct& product, bool pair,
                                int unit) {
  Unit u;
  u.pair = pair;
  constexpr int kHalf = kOutputs / 2;
  const int width = pair ? kHalf : kOutputs;
  const int out_tiles = (product.out_features + width - 1) / width;
  int block = unit / out_tiles;
  const int out_tile = unit - block * out_tiles;
  u.routed = block >= product.all_tiles;
  if (!u.routed) {
    u.group = product.routed;
  } else {
    block -= product.all_tiles;
#pragma unroll 1
    for (u.group = 0; block >= product.routed_tiles; ++u.group) block -= product.routed_tiles;
  }
  u.tile = block;
  u.first = out_tile * width;
  const int left = product.out_features - u.first;
  const int64_t from = int64_t{u.first} * product.in_features;
  const __nv_bfloat16* const* const matrices =
      p.weights + product.first_weight + u.group * (pair ? 2 : 1);
  u.weights[0] = matrices[0] + from;
  u.weights[1] = pair ? matrices[1] + from : u.weights[0] + int64_t{kHalf} * product.in_features;
  u.rows[0] = left;
  u.rows[1] = pair ? left : left - kHalf;
  return u;
}

// Entries [begin, begin + count) of a group, in tiles as equal as can be.
struct EntryRange {
  int begin, count;
};
__device__ inline EntryRange RangeOfTile(int total, int tile, int most) {
  const int tiles = (total + most - 1) / most;
  if (tile >= tiles) return {0, 0};
  const int size = (total + tiles - 1) / tiles;
  return {tile * size, min(size, total - tile * size)};
}

// Looks for the choices of one memory, in order: visit(number, pair) of each. Returns the number of
// all. Called by the whole block; `counts` has an int for each warp.
template <typename Range, typename Visit>
__device__ inline int ForEachChoice(const int32_t* indices, int pairs, int memory, int* counts,
                                    Range range_of, Visit visit) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  const int each = (pairs + blockDim.x - 1) / blockDim.x * kWarp;  // of a warp
  const int begin = warp * each + lane;
  constexpr int kAtOnce = 4;  // loads that share a latency
  int count = 0;
#pragma unroll 1
  for (int i = 0; i < each; i += kAtOnce * kWarp) {
    int own[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int at = i + j * kWarp;
      own[j] = at < each && begin + at < pairs ? indices[begin + at] : -1;
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      count += __popc(__ballot_sync(kAllLanes, own[j] == memory));
    }
  }
  if (lane == 0) counts[warp] = count;
  __syncthreads();
  int before = 0, total = 0;
#pragma unroll 1
  for (int w = 0; w < warps; ++w) {
    if (w < warp) before += counts[w];
    total += counts[w];
  }
  const EntryRange range = range_of(total);
#pragma unroll 1
  for (int i = 0; i < each; i += kWarp) {
    const bool hit = begin + i < pairs && indices[begin + i] == memory;
    const unsigned all = __ballot_sync(kAllLanes, hit);
    const int number = before + __popc(all & ((1u << lane) - 1)) - range.begin;
    if (hit && number >= 0 && number < range.count) visit(number, begin + i);
    before += __popc(all);
  }
  return total;
}

// Bytes to come, a multiple of 16.
__device__ inline void PrefetchToL2(const void* from, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes));
#endif
}

}  // namespace mneme::cuda::decode::batch
