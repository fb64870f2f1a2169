// Passes over the logits of a block that are in fours, where a draw spends its time. Functions of
// their own, which hold in registers what a pass needs and nothing else: what a thread has in local
// memory meanwhile would not fit a multiprocessor's cache.
#pragma once

#include <cstdint>

#include "kernels/cuda/sampling/buckets.cuh"
#include "kernels/cuda/sampling/sums.cuh"

namespace mneme::cuda::sampling {

struct FloatExtremes {
  float largest, smallest;  // of those above -inf
  int token;                // of the largest, the lowest; -1: there are none
};
// A thread's. NaN, which neither maximum nor minimum takes, stands for what is left out.
__device__ __noinline__ FloatExtremes FindFloatExtremes(const float* logits,
                                                        const uint32_t* replaced, int begin,
                                                        int end) {
  const FloatValues values = {logits, replaced, begin, end};
  FloatExtremes found = {-INFINITY, INFINITY, -1};
  int best = -1;  // the four that has the largest
  values.ForEach<4>([&](int token, const float(&all)[4], unsigned keep) {
    float four[4] = {all[0], all[1], all[2], all[3]};
    if (replaced != nullptr) {
#pragma unroll
      for (int j = 0; j < 4; ++j) four[j] = (keep >> j & 1) != 0 ? four[j] : NAN;
    }
    const float high = fmaxf(fmaxf(four[0], four[1]), fmaxf(four[2], four[3]));
    float low = fminf(fminf(four[0], four[1]), fminf(four[2], four[3]));
    if (low == -INFINITY) {
      low = INFINITY;
#pragma unroll
      for (int j = 0; j < 4; ++j) low = four[j] == -INFINITY ? low : fminf(low, four[j]);
    }
    if (high > found.largest) found.largest = high, best = token;
    found.smallest = fminf(found.smallest, low);
  });
  if (best < 0) return found;
  const unsigned keep = values.Kept(best);
#pragma unroll
  for (int j = 3; j >= 0; --j) {
    if ((keep >> j & 1) != 0 && logits[best + j] == found.largest) found.token = best + j;
  }
  return found;
}

// Counts logits into Shared().own.
__device__ __noinline__ void CountInBuckets(const float* logits, const uint32_t* replaced,
                                            int begin, int end, float largest, float scale) {
  const WholeDivision division = {largest, scale};
  FloatValues{logits, replaced, begin, end}.ForEach<4>(
      [&](int, const float(&four)[4], unsigned keep) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int bucket = division.BucketOf(four[j]);
          atomicAdd(&Shared().own[(keep >> j & 1) != 0 ? bucket : kBuckets], 1u);
        }
      });
}
// The same. Returns a thread's mass.
__device__ __noinline__ Mass CountAndAdd(const float* logits, const uint32_t* replaced, int begin,
                                         int end, float largest, float scale, double top,
                                         double rate) {
  const WholeDivision division = {largest, scale};
  const Weights weights(Shared().powers);
  Mass mass = 0;
  FloatValues{logits, replaced, begin, end}.ForEach<2>(
      [&](int, const float(&four)[4], unsigned keep) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const bool counts = (keep >> j & 1) != 0;
          const int bucket = division.BucketOf(four[j]);
          atomicAdd(&Shared().own[counts ? bucket : kBuckets], 1u);
          const uint64_t weight = weights.Of((static_cast<double>(four[j]) - top) * rate);
          mass += counts ? weight : 0;
        }
      });
  return mass;
}

// Takes the tokens of buckets first to end - 1.
__device__ __noinline__ void CollectBuckets(const float* logits, const uint32_t* replaced,
                                            int begin, int end_token, float largest, float scale,
                                            int first, int end) {
  const WholeDivision division = {largest, scale};
  const auto least = static_cast<float>(first);
  const float most = end < kBuckets ? static_cast<float>(end) : NAN;  // none
  FloatValues{logits, replaced, begin, end_token}.ForEach<4>(
      [&](int token, const float(&four)[4], unsigned keep) {
        unsigned hits = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float place = division.PlaceOf(four[j]);
          if (place >= least && !(place >= most) && four[j] > -INFINITY) hits |= 1u << j;
        }
#pragma unroll 1
        for (hits &= keep; hits != 0; hits &= hits - 1) {
          const int j = __ffs(hits) - 1;
          AddCandidate(j == 0 ? four[0] : j == 1 ? four[1] : j == 2 ? four[2] : four[3], token + j);
        }
      });
}
// A thread's mass of what lies before bucket `end`.
__device__ __noinline__ Mass AddBefore(const float* logits, const uint32_t* replaced, int begin,
                                       int end_token, float largest, float scale, double top,
                                       double rate, int end) {
  const WholeDivision division = {largest, scale};
  const Weights weights(Shared().powers);
  Mass mass = 0;
  FloatValues{logits, replaced, begin, end_token}.ForEach<2>(
      [&](int, const float(&four)[4], unsigned keep) {
        bool counts[4], any = false;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          any |= counts[j] = (keep >> j & 1) != 0 && division.BucketOf(four[j]) < end;
        }
        if (!any) return;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const uint64_t weight = weights.Of((static_cast<double>(four[j]) - top) * rate);
          mass += counts[j] ? weight : 0;
        }
      });
  return mass;
}

}  // namespace mneme::cuda::sampling
