// The largest and the smallest of a row's logits, and of a warp's.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/device_utils.cuh"

namespace mneme::cuda::sampling {

// The largest logit, its lowest token, and the smallest, of those above -inf and not NaN. token -1:
// there are none.
struct Extremes {
  double largest = -INFINITY, smallest = INFINITY;
  int32_t token = -1;

  __device__ void Add(const Extremes& other) {
    if (other.token < 0) return;
    if (token < 0 || other.largest > largest || (other.largest == largest && other.token < token)) {
      largest = other.largest;
      token = other.token;
    }
    smallest = fmin(smallest, other.smallest);
  }
};

// The largest of a warp, in all lanes.
__device__ inline uint64_t LargestOfWarp(uint64_t x) {
  const auto high = static_cast<uint32_t>(x >> 32), low = static_cast<uint32_t>(x);
  const uint32_t most = __reduce_max_sync(kAllLanes, high);
  return uint64_t{most} << 32 | __reduce_max_sync(kAllLanes, high == most ? low : 0);
}
// Numbers in the order of doubles that are no NaN, of which zeros are equal; above 0.
__device__ inline uint64_t Ordered(double x) {
  const auto bits = __double_as_longlong(x + 0.0);
  return static_cast<uint64_t>(bits) ^ (bits < 0 ? ~uint64_t{0} : uint64_t{1} << 63);
}
__device__ inline double OfOrdered(uint64_t x) {
  return __longlong_as_double(static_cast<long long>(x >> 63 != 0 ? x ^ uint64_t{1} << 63 : ~x));
}
// The extremes of all lanes of a warp, in every lane.
__device__ inline Extremes OfWarp(const Extremes& own) {
  const bool any = own.token >= 0;
  const uint64_t largest = any ? Ordered(own.largest) : 0;
  const uint64_t of_all = LargestOfWarp(largest);
  Extremes found;
  if (of_all == 0) return found;
  found.largest = OfOrdered(of_all);
  found.token = __reduce_min_sync(kAllLanes, largest == of_all ? own.token : INT32_MAX);
  found.smallest = -OfOrdered(LargestOfWarp(any ? Ordered(-own.smallest) : 0));
  return found;
}
__device__ inline Extremes MakeExtremes(double largest, double smallest, int token) {
  Extremes e;
  e.largest = largest;
  e.smallest = smallest;
  e.token = token;
  return e;
}

}  // namespace mneme::cuda::sampling
