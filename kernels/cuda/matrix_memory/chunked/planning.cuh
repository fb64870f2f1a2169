// Finds the chains of a step's segments, and says where their chunks and rows begin. One block.
// And what other kernels ask of that: which chain a chunk belongs to.
#pragma once

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/segments.cuh"
#include "kernels/cuda/matrix_memory/chunked/plan.h"

namespace mneme::cuda::matrix_memory::chunked {

struct ChunkPlanning {
  ChainPlan plan;
  SegmentArrays segments;

  __device__ int EntriesOf(int segment) const {
    if (segments.slots[segment] < 0) return 0;
    return segments.offsets[segment + 1] - segments.offsets[segment];
  }
};

constexpr int kChainBuckets = 64;  // two for each power of two of chunks

__device__ inline int ChunksOf(int entries) { return (entries + kChunk - 1) / kChunk; }

// Longest chains first.
__device__ inline int ChainBucket(int entries) {
  const int chunks = ChunksOf(entries), log = 31 - __clz(chunks);
  const int next_bit = log > 0 ? chunks >> (log - 1) & 1 : 0;
  return kChainBuckets - 1 - (2 * log + next_bit);
}

// The order of chains of about one length is left to chance, which changes where things lie but no
// result.
template <int kThreads>
__device__ void PlanChunks(const ChunkPlanning& p) {
  __shared__ int begin[kChainBuckets];
  __shared__ int2 warp_sums[kThreads / kWarp];
  __shared__ int chains;
  const int thread = threadIdx.x, warp = thread / kWarp, lane = thread % kWarp;
  if (thread < kChainBuckets) begin[thread] = 0;
  __syncthreads();
  for (int s = thread; s < p.segments.count; s += kThreads) {
    const int entries = p.EntriesOf(s);
    if (entries > 1) atomicAdd(&begin[ChainBucket(entries)], 1);
  }
  __syncthreads();
  if (thread == 0) {
    int sum = 0;
    for (int i = 0; i < kChainBuckets; ++i) {
      const int n = begin[i];
      begin[i] = sum;
      sum += n;
    }
    chains = sum;
    *p.plan.chains = sum;
    *p.plan.taken = 0;
  }
  __syncthreads();
  for (int s = thread; s < p.segments.count; s += kThreads) {
    const int entries = p.EntriesOf(s);
    if (entries > 1) p.plan.segment[atomicAdd(&begin[ChainBucket(entries)], 1)] = s;
  }
  __syncthreads();
  int2 total = {0, 0};  // of chunks and rows before this round
  for (int first = 0; first < chains; first += kThreads) {
    const int i = first + thread;
    int2 own = {0, 0};
    if (i < chains) {
      const int entries = p.EntriesOf(p.plan.segment[i]);
      own = {ChunksOf(entries), TileRows(entries)};
    }
    int2 sum = own;  // up to this one, first of the warp, then of the block
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const int x = __shfl_up_sync(kAllLanes, sum.x, offset);
      const int y = __shfl_up_sync(kAllLanes, sum.y, offset);
      if (lane >= offset) sum.x += x, sum.y += y;
    }
    if (lane == kWarp - 1) warp_sums[warp] = sum;
    __syncthreads();
    int2 all = {0, 0};
    for (int w = 0; w < kThreads / kWarp; ++w) {
      if (w == warp) sum.x += all.x, sum.y += all.y;
      all.x += warp_sums[w].x, all.y += warp_sums[w].y;
    }
    if (i < chains) {
      p.plan.first_chunk[i] = total.x + sum.x - own.x;
      p.plan.first_row[i] = total.y + sum.y - own.y;
    }
    total.x += all.x, total.y += all.y;
    __syncthreads();
  }
  if (thread == 0) {
    p.plan.first_chunk[chains] = total.x;
    p.plan.first_row[chains] = total.y;
  }
}

struct ChunkPlace {
  int entry, entries;  // of the chunk
  int row;             // in the images
};

// One warp: where chunk `chunk` is, by a search that divides the chains by 32 in each round.
__device__ inline ChunkPlace FindChunk(const ChainPlan& plan, const int* offsets, int chains,
                                       int chunk) {
  const int lane = threadIdx.x % kWarp;
  int begin = 0, end = chains;
  while (end - begin > 1) {
    const int step = (end - begin + kWarp - 1) / kWarp, i = begin + lane * step;
    const bool before = i < end && plan.first_chunk[i] <= chunk;
    begin += (__popc(__ballot_sync(kAllLanes, before)) - 1) * step;
    end = min(end, begin + step);
  }
  const int segment = plan.segment[begin];
  const int skipped = (chunk - plan.first_chunk[begin]) * kChunk;
  const int first = offsets[segment], last = offsets[segment + 1];
  return {first + skipped, min(kChunk, last - first - skipped), plan.first_row[begin] + skipped};
}

}  // namespace mneme::cuda::matrix_memory::chunked
