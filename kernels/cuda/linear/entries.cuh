// What the kernels behind Linear() share: finding a block's product, and its group's entries.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/linear/batch.h"

namespace mneme::cuda::linear {

// The index of the product that block `block` works on.
__device__ inline int ProductOfBlock(const LinearBatch& batch, int block) {
  int i = 0;
  while (i + 1 < batch.count && block >= batch.products[i + 1].first_block) ++i;
  return i;
}

__device__ inline int GroupBegin(const LinearProduct& p, int group) {
  return p.group_ends == nullptr ? 0 : p.group_ends[group - 1];
}
__device__ inline int GroupEnd(const LinearProduct& p, int group) {
  return p.group_ends == nullptr ? p.entries : p.group_ends[group];
}

// Some of a group's entries.
struct EntryTile {
  int group = 0, begin = 0, end = 0;
};

// The tile-th of all tiles of at most `size` entries; tiles do not span groups. False past the
// last.
__device__ inline bool FindEntryTile(const LinearProduct& p, int tile, int size, EntryTile* found) {
  for (int group = 0; group < p.groups; ++group) {
    const int begin = GroupBegin(p, group), end = GroupEnd(p, group);
    const int tiles = (end - begin + size - 1) / size;
    if (tile < tiles) {
      found->group = group;
      found->begin = begin + tile * size;
      found->end = min(end, found->begin + size);
      return true;
    }
    tile -= tiles;
  }
  return false;
}

__device__ inline int64_t RowOfEntry(const LinearProduct& p, int entry) {
  return p.entry_rows == nullptr ? entry : p.entry_rows[entry];
}

__device__ inline void AddTo(float4& sum, const float4& more) {
  sum.x += more.x;
  sum.y += more.y;
  sum.z += more.z;
  sum.w += more.w;
}

// Outputs [first, first + 4) of an entry, as far as there are; `first` is a multiple of four.
__device__ inline void StoreFour(const LinearProduct& p, int entry, int first, float4 sums) {
  float* y = p.y + int64_t{entry} * p.out_features + first;
  if (p.out_features % 4 == 0) {
    float4* const four = reinterpret_cast<float4*>(y);
    if (p.accumulate) AddTo(sums, *four);
    *four = sums;
    return;
  }
  const float values[4] = {sums.x, sums.y, sums.z, sums.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (first + i < p.out_features) y[i] = p.accumulate ? y[i] + values[i] : values[i];
  }
}

}  // namespace mneme::cuda::linear
