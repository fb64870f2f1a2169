// The segments of a step that there is work for, as the blocks of a persistent kernel share them.
#pragma once

#include "kernels/cuda/matrix_memory/memory.cuh"
#include "kernels/cuda/matrix_memory/persistent/fold_order.h"

namespace mneme::cuda::matrix_memory::persistent {

// Segments that a launch may have.
constexpr int kMaxSegmentWords = 160, kMaxSegments = kMaxSegmentWords * kWarp;

// Which segments there is work for, in the order of PlaceOfRank(): some blocks fold, which is many
// products, while others wait for memory. A block that folds last ends late: by what batches took
// on an H200, the last ten pieces of work of each block do not.
struct ActiveSegments {
  unsigned bits[2][kMaxSegmentWords];          // kFolding, kNotFolding
  unsigned short before[2][kMaxSegmentWords];  // in the words in front
  int folding, others;

  // All threads of the block call it.
  template <int kWarps>
  __device__ void Find(const Problem& p) {
    constexpr int kAtOnce = 4;  // words of a warp whose loads share one latency
    const int lane = threadIdx.x % kWarp;
    const int words = (p.segments.count + kWarp - 1) / kWarp;
    for (int first = threadIdx.x / kWarp; first < words; first += kAtOnce * kWarps) {
      bool active[kAtOnce], folds[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int segment = (first + i * kWarps) * kWarp + lane;
        const int at = min(segment, p.segments.count - 1);
        const int length = p.segments.offsets[at + 1] - p.segments.offsets[at];
        // The latter two always hold; reading them brings them nearer to FindItem().
        active[i] = segment < p.segments.count && p.segments.slots[at] >= 0 && length == 1 &&
                    p.segments.memories[at] >= 0 && p.segments.fresh[at] >= 0;
        folds[i] = p.folding != nullptr && p.folding[at] != 0;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const unsigned first_word = __ballot_sync(kAllLanes, active[i] && folds[i]);
        const unsigned second_word = __ballot_sync(kAllLanes, active[i] && !folds[i]);
        if (lane < 2 && first + i * kWarps < words) {
          bits[lane][first + i * kWarps] = lane == kFolding ? first_word : second_word;
        }
      }
    }
    __syncthreads();
    const int list = threadIdx.x / kWarp;
    if (list < 2) {
      int total = 0;
      for (int first = 0; first < words; first += kWarp) {
        const int own = first + lane < words ? __popc(bits[list][first + lane]) : 0;
        int sum = own;
#pragma unroll
        for (int offset = 1; offset < kWarp; offset *= 2) {
          const int other = __shfl_up_sync(kAllLanes, sum, offset);
          if (lane >= offset) sum += other;
        }
        if (first + lane < words) {
          before[list][first + lane] = static_cast<uint16_t>(total + sum - own);
        }
        total += __shfl_sync(kAllLanes, sum, kWarp - 1);
      }
      if (lane == 0) (list == kFolding ? folding : others) = total;
    }
    __syncthreads();
  }
  __device__ int count() const { return folding + others; }
  // The rank-th segment; rank < count().
  __device__ int At(const Problem& p, int rank) const {
    constexpr int kLastPieces = 10;
    const int last = kLastPieces * static_cast<int>(gridDim.x) / (p.value_heads * p.tiles);
    const auto [list, number] = PlaceOfRank(rank, count(), folding, last);
    int word = 0, end = (p.segments.count + kWarp - 1) / kWarp;  // word <= the one searched < end
    while (end - word > 1) {
      const int middle = (word + end) / 2;
      (before[list][middle] <= number ? word : end) = middle;
    }
    unsigned rest = bits[list][word];
    int left = number - before[list][word], bit = 0;
#pragma unroll
    for (int half = kWarp / 2; half > 0; half /= 2) {
      const int below = __popc(rest & ((1u << half) - 1));
      if (left < below) continue;
      left -= below;
      rest >>= half;
      bit += half;
    }
    return word * kWarp + bit;
  }
};

// FindItem() for number `unit` of the work that there is.
__device__ inline bool FindUnit(const Problem& p, const ActiveSegments& active, int unit,
                                Item& item) {
  const int per_memory = p.value_heads * p.tiles, rank = unit / per_memory;
  return rank < active.count() && FindItem(p, active.At(p, rank), unit % per_memory, item);
}

}  // namespace mneme::cuda::matrix_memory::persistent
