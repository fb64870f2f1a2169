// What a selection over a row's tokens (sampling/select.cuh) works with: how logits are divided
// into buckets, and what the blocks of a team share.
#pragma once

#include <cstdint>

#include "kernels/cuda/sampling/extremes.cuh"
#include "kernels/cuda/sampling/sums.cuh"

namespace mneme::cuda::sampling {

constexpr int kBuckets = 4096;
constexpr int kCandidates = 2048;  // that can be sorted
constexpr int kHead = 512;         // likeliest tokens that are sorted together
constexpr int kMaxVocab = kBuckets * (kCandidates - 2);

// The end of a prefix: its last token, and the mass up to and with it.
struct Place {
  Mass mass;
  double logit;
  int32_t token;  // -1: not found
};

// Some consecutive buckets.
struct BucketRange {
  int first, end;
};

struct SelectorShared {
  // For the extremes and sums of a row.
  Powers powers;
  Mass mass_scratch[kWarps];
  Mass partial;
  Extremes extremes;
  Extremes warp_extremes[kWarps];
  // For Find only.
  alignas(16) Place place;
  Mass sorted_before;        // of what comes before the sorted buckets; of the team's first block
  double keys[kCandidates];  // likewise
  int32_t tokens[kCandidates];  // likewise
  double sum_scratch[kWarps];
  uint32_t counts[kBuckets + 1];  // of the team: before the bucket
  alignas(16) uint32_t count_scratch[kWarps];
  uint32_t own[kBuckets + 1];  // what the block has counted, and what is in no bucket
  uint32_t candidates;
  BucketRange range;
};

extern __shared__ __align__(16) unsigned char dynamic_shared[];
// A block's: the first that is in its dynamic shared memory.
__device__ inline SelectorShared& Shared() {
  return *reinterpret_cast<SelectorShared*>(dynamic_shared);
}

__device__ inline uint64_t WeightOf(double x) { return Weights(Shared().powers).Of(x); }

// How long a prefix has to be: so many tokens, or at least so much mass. At least 1, at most all.
struct Need {
  bool by_count;
  Mass amount;
};

// How all logits are divided, by arithmetic in fp32.
struct WholeDivision {
  float largest, scale;

  // 0 for NaN, as of the largest by a scale that fp32 cannot hold.
  __device__ float PlaceOf(float logit) const { return fmaxf((largest - logit) * scale, 0); }
  __device__ int BucketOf(float logit) const {
    const int bucket = min(static_cast<int>(PlaceOf(logit)), kBuckets - 1);
    return logit > -INFINITY ? bucket : kBuckets;
  }
};

// How logits are divided into buckets, by a monotone function. Kernels keep a copy in registers.
struct Division {
  // All logits, by arithmetic in fp32, which is what they are but for those of a row's lists; the
  // last bucket has what lies below `smallest`, too. Otherwise those in [smallest, largest].
  bool all = false;
  double largest = 0, smallest = 0, scale = 0;  // of the keys
  bool by_token = false;  // keys are negative ids of the tokens whose logit is `equal`
  bool weigh = false;     // masses are e^((logit - top) * rate), else zero
  double equal = 0, top = 0, rate = 0;
  float highest = 0, step = 0;  // binary logarithms of the largest key's mass, and of a bucket

  __device__ WholeDivision Whole() const {
    return {static_cast<float>(largest), static_cast<float>(scale)};
  }
  // kBuckets: in none.
  __device__ int BucketOf(double logit, int token) const {
    if (all) return Whole().BucketOf(static_cast<float>(logit));
    const double key = KeyOf(logit, token);
    if (!(key <= largest && key >= smallest)) return kBuckets;
    return static_cast<int>(fmin((largest - key) * scale, kBuckets - 1.0));
  }
  // Whether a logit that is in no bucket comes before all of them.
  __device__ bool IsAhead(double logit) const {
    return !all && logit > (by_token ? equal : largest);
  }
  __device__ double KeyOf(double logit, int token) const {
    if (!by_token) return logit;
    return logit == equal ? -static_cast<double>(token) : -INFINITY;
  }
  __device__ uint64_t WeightOf(double logit) const {
    return weigh ? sampling::WeightOf((logit - top) * rate) : 0;
  }
  __device__ double LogitOf(double key) const { return by_token ? equal : key; }

  // Bounds for the mass of a token of bucket b, in units of a Mass: by fp32, and of buckets that
  // may be off by what fp32 rounds.
  __device__ float MostWeight(int b) const {
    return fmaf(WeightBelow(fmaxf(static_cast<float>(b) - kSlack, 0)), 1 + kError, 1);
  }
  __device__ float LeastWeight(int b) const {
    if (all && b == kBuckets - 1) return 0;
    return fmaxf(fmaf(WeightBelow(static_cast<float>(b) + (1 + kSlack)), 1 - kError, -1), 0);
  }

 private:
  static constexpr float kSlack = 1.0f / 16;  // of a bucket
  static constexpr float kError = 1e-4f;
  // That of a key so many buckets below the largest.
  __device__ float WeightBelow(float buckets) const {
    return exp2f(fmaf(-step, buckets, highest)) * 0x1p63f;
  }
};

// One more of the block's tokens that are to be sorted, in any order.
__device__ inline void AddCandidate(double key, int token) {
  const uint32_t place = atomicAdd(&Shared().candidates, 1u);
  if (place >= kCandidates) return;
  Shared().keys[place] = key;
  Shared().tokens[place] = token;
}

}  // namespace mneme::cuda::sampling
