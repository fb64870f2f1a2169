// Lists that a block of threads makes in shared memory: chosen in order, and sorted. All threads of
// the block call these, and see the list when they return.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/device_utils.cuh"

namespace mneme::cuda::engrams {

constexpr uint64_t kLastKey = ~uint64_t{0};

// The least power of two that is not below n.
__host__ __device__ inline int PowerFrom(int n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}

// take(i, place) for those i < n for which takes(i), in order; returns how many there are.
template <int kThreads, typename Takes, typename Take>
__device__ inline int Choose(int n, const Takes& takes, const Take& take) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ int counts[kWarps];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int chosen = 0;
  for (int base = 0; base < n; base += kThreads) {
    const int i = base + static_cast<int>(threadIdx.x);
    const bool taken = i < n && takes(i);
    const unsigned votes = __ballot_sync(kAllLanes, taken);
    if (lane == 0) counts[warp] = __popc(votes);
    __syncthreads();
    int place = chosen + __popc(votes & ((1u << lane) - 1));
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) place += counts[w];
      chosen += counts[w];
    }
    if (taken) take(i, place);
    __syncthreads();
  }
  return chosen;
}

// Sorts keys [0, n), least first. There is room for PowerFrom(n).
template <int kThreads>
__device__ inline void Sort(uint64_t* keys, int n) {
  const int size = PowerFrom(n);
  for (int i = n + static_cast<int>(threadIdx.x); i < size; i += kThreads) keys[i] = kLastKey;
  __syncthreads();
  for (int sorted = 2; sorted <= size; sorted *= 2) {
    for (int distance = sorted / 2; distance > 0; distance /= 2) {
      for (int pair = threadIdx.x; pair < size / 2; pair += kThreads) {
        const int low = 2 * pair - (pair & (distance - 1)), high = low + distance;
        const uint64_t a = keys[low], b = keys[high];
        if ((a > b) == ((low & sorted) == 0)) {
          keys[low] = b;
          keys[high] = a;
        }
      }
      __syncthreads();
    }
  }
}

// A key by which higher scores come first, and of equal ones the lower index.
__device__ inline uint64_t KeyOfScore(float score, int index) {
  const uint32_t bits = __float_as_uint(score + 0.0f);  // -0 is 0
  const uint32_t ascending = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{~ascending} << 32 | static_cast<uint32_t>(index);
}
// Keys by which older engrams come first.
__device__ inline uint64_t KeyOfBirth(uint32_t birth, int engram) {
  return uint64_t{birth} << 16 | static_cast<uint32_t>(engram);
}
__device__ inline int EngramOfKey(uint64_t key) { return static_cast<int>(key & 0xffff); }
__device__ inline int IndexOfKey(uint64_t key) { return static_cast<int>(key & 0xffffffff); }

}  // namespace mneme::cuda::engrams
