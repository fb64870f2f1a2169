// What a selection over a row's tokens (sampling/select.cuh) works with: how logits are divided
// into buckets, and what the blocks of a team share.
#pragma once

#include <cstdint>

#include "kernels/cuda/sampling/sums.cuh"

namespace mneme::cuda::sampling {

constexpr int kBuckets = 1024;
constexpr int kCandidates = 2048;  // that can be sorted
constexpr int kHead = 512;         // buckets of the likeliest tokens are sorted together
constexpr int kMaxVocab = kBuckets * (kCandidates - 2);

// The end of a prefix: its last token, and the mass up to and with it.
struct Place {
  Mass mass;
  double logit;
  int32_t token;
};

// What one block has counted. A mass has three limbs.
struct Buckets {
  uint32_t counts[kBuckets];
  uint32_t low[kBuckets], middle[kBuckets], high[kBuckets];
};

struct SelectorShared {
  // For the extremes and sums of a row.
  Mass mass_scratch[kWarps];
  Mass partial;
  Extremes extremes;
  Extremes warp_extremes[kWarps];
  // For Find only.
  alignas(16) Mass masses[kBuckets + 1];  // of the team: before the bucket
  Place place;
  double keys[kCandidates];     // of the team's first block
  int32_t tokens[kCandidates];  // likewise
  uint32_t counts[kBuckets + 1];
  uint32_t count_scratch[kWarps];
  Buckets own;
  uint32_t candidates;
  int bucket;
  int head;  // the buckets before it have up to kHead tokens
};

// How long a prefix has to be: so many tokens, or at least so much mass. At least 1, at most all.
struct Need {
  bool by_count;
  Mass amount;
};

// How logits are divided into buckets. Kernels keep a copy in registers.
struct Division {
  double largest = 0, smallest = 0, scale = 0;  // of the keys
  bool by_token = false;  // keys are negative ids of the tokens whose logit is `equal`
  bool weigh = false;     // masses are e^((logit - top) * rate), else zero
  double equal = 0, top = 0, rate = 0;

  __device__ double Key(double logit, int token) const {
    if (!by_token) return logit;
    return logit == equal ? -static_cast<double>(token) : -INFINITY;
  }
  __device__ bool Has(double key) const { return key <= largest && key >= smallest; }
  __device__ int Bucket(double key) const {
    const double place = (largest - key) * scale;
    return place < kBuckets - 1 ? static_cast<int>(place) : kBuckets - 1;
  }
  __device__ bool IsIn(double key, int first, int end) const {
    const int bucket = Bucket(key);
    return Has(key) && bucket >= first && bucket < end;
  }
  __device__ uint64_t WeightOf(double key) const {
    return weigh ? Weight(((by_token ? equal : key) - top) * rate) : 0;
  }
};

}  // namespace mneme::cuda::sampling
