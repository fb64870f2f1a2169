// Finds where prefixes of a row's tokens end, in descending order of logits, ties by id, without
// sorting the row.
//
// Logits are counted into buckets by a monotone function of the logit, linear, so that the buckets
// of usual logits are about equally full, together with their probabilities. The sums over whole
// buckets are those of the sorted order, being exact; so the end of a prefix lies in a bucket that
// the sums name, and only that bucket is sorted. A bucket too large for that is divided again; if
// all of its logits are equal, by token id, which is the order among equals. What is found is what
// a walk over the sorted row finds, except where the doubles of that walk round across an edge.
#pragma once

#include <cstdint>

#include "kernels/cuda/sampling/buckets.cuh"
#include "kernels/cuda/sampling/sums.cuh"

namespace mneme::cuda::sampling {

// Every logit.
struct All {
  __device__ bool operator()(double, int) const { return true; }
};

class Selector {
 public:
  __device__ Selector(const Team& team, SelectorShared& shared, const Values& values, int vocab)
      : team_(team), s_(shared), values_(values), vocab_(vocab) {}

  // Over the team, of logits for which keep(logit, token) is true.
  template <typename Keep>
  __device__ __noinline__ Extremes FindExtremes(Keep keep) {
    const Values values = values_;
    // Floats first: most logits are, and doubles are slower.
    float largest = -INFINITY, smallest = INFINITY;
    int token = -1;
    Extremes found;
    values.ForEachFour<4>(
        [&](int t, const float(&four)[4], unsigned kept) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const float logit = four[j];
            if ((kept >> j & 1) == 0 || !(logit > -INFINITY) || !keep(logit, t + j)) continue;
            if (logit > largest) largest = logit, token = t + j;
            smallest = fminf(smallest, logit);
          }
        },
        [&](int t, double logit) {
          if (logit > -INFINITY && keep(logit, t)) found.Add(MakeExtremes(logit, logit, t));
        });
    if (token >= 0) found.Add(MakeExtremes(largest, smallest, token));
    found = OfWarp(found);
    const int lane = threadIdx.x % kWarp;
    if (lane == 0) s_.warp_extremes[threadIdx.x / kWarp] = found;
    __syncthreads();
    if (threadIdx.x < kWarp) {
      found = OfWarp(lane < kWarps ? s_.warp_extremes[lane] : Extremes());
      if (lane == 0) s_.extremes = found;
    }
    team_.Sync();
    found = OfWarp(lane < team_.size() ? *team_.Of(lane, &s_.extremes) : Extremes());
    team_.Sync();
    return found;
  }

  // The team's sum of weigh(logit).
  template <typename Weigh>
  __device__ __noinline__ Mass Sum(Weigh weigh) {
    const Values values = values_;
    Mass sum = 0;
    values.ForEach([&](int, double logit) { sum += weigh(logit); });
#pragma unroll
    for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) sum += ShuffleXor(sum, lanes);
    if (threadIdx.x % kWarp == 0) s_.mass_scratch[threadIdx.x / kWarp] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int w = 1; w < kWarps; ++w) sum += s_.mass_scratch[w];
      s_.partial = sum;
    }
    team_.Sync();
    sum = 0;
    team_.ForEach(&s_.partial, [&](const Mass* partial) { sum += *partial; });
    team_.Sync();
    return sum;
  }

  // Before any Find: `extremes` are those of all logits. Masses are e^((logit - largest) * rate);
  // weigh false: zero, for needs by count.
  __device__ void Start(const Extremes& extremes, double rate, bool weigh) {
    division_.top = extremes.largest;
    bottom_ = extremes.smallest;
    division_.rate = rate;
    division_.weigh = weigh;
    DivideAll();
  }
  __device__ uint32_t count() const { return s_.counts[kBuckets]; }
  __device__ Mass mass() const { return s_.masses[kBuckets]; }

  __device__ __noinline__ Place Find(Need need) {
    if (!all_) DivideAll();
    for (;;) {
      const int bucket = BucketOf(need);
      const uint32_t before = s_.counts[bucket];
      const Mass mass_before = s_.masses[bucket];
      if (s_.counts[bucket + 1] - before <= kCandidates) return FindAmongSorted(bucket, need);
      const Division division = division_;
      const Extremes inside = FindExtremes([=](double logit, int token) {
        return division.IsIn(division.Key(logit, token), bucket, bucket + 1);
      });
      if (inside.largest == inside.smallest) {
        // Divided by token, a bucket has few enough: kMaxVocab.
        division_.by_token = true;
        division_.equal = inside.largest;
        Divide(0, -(vocab_ - 1.0), kBuckets / static_cast<double>(vocab_), before, mass_before);
      } else {
        Divide(inside.largest, inside.smallest, kBuckets / (inside.largest - inside.smallest),
               before, mass_before);
      }
      all_ = false;
    }
  }

  // The prefix that ends at `place`, of `count` <= kCandidates tokens, in order: lies in keys and
  // tokens of the team's first block.
  __device__ void SortPrefix(const Place& place, int count) {
    const double last = place.logit;
    const int last_token = place.token;
    Collect([=](double logit,
                int token) { return logit > last || (logit == last && token <= last_token); },
            [](double logit, int) { return logit; });
    if (team_.rank() == 0) Sort(count);
    sorted_first_ = sorted_end_ = 0;
  }

 private:
  // The extremes of all lanes of a warp, in every lane.
  __device__ static Extremes OfWarp(Extremes found) {
#pragma unroll
    for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
      found.Add(MakeExtremes(ShuffleXor(found.largest, lanes), ShuffleXor(found.smallest, lanes),
                             ShuffleXor(found.token, lanes)));
    }
    return found;
  }
  __device__ static Extremes MakeExtremes(double largest, double smallest, int token) {
    Extremes e;
    e.largest = largest;
    e.smallest = smallest;
    e.token = token;
    return e;
  }

  // All logits, down to where probabilities end; the last bucket has what is below.
  __device__ void DivideAll() {
    division_.by_token = false;
    const double spread = division_.top - bottom_;
    const double range = division_.weigh ? fmin(spread, kDeepest / division_.rate) : spread;
    Divide(division_.top, bottom_, range > 0 ? kBuckets / range : 0.0, 0, 0);
    all_ = true;
  }

  // Sums over buckets of the keys in [smallest, largest], of all blocks, in all blocks.
  __device__ __noinline__ void Divide(double largest, double smallest, double scale,
                                      uint32_t count_before, Mass mass_before) {
    division_.largest = largest;
    division_.smallest = smallest;
    division_.scale = scale;
    const Division division = division_;
    const Values values = values_;
    sorted_first_ = sorted_end_ = 0;
    __syncthreads();
    if (threadIdx.x == 0) s_.head = 0;
    for (int b = threadIdx.x; b < kBuckets; b += kThreads) {
      s_.own.counts[b] = s_.own.low[b] = s_.own.middle[b] = s_.own.high[b] = 0;
    }
    __syncthreads();
    values.ForEachFour<2>(
        [&](int token, const float(&four)[4], unsigned kept) {
          double keys[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            keys[j] = (kept >> j & 1) != 0 ? division.Key(four[j], token + j) : -INFINITY;
          }
          Count(division, keys);
        },
        [&](int token, double logit) { Count(division, {division.Key(logit, token)}); });
    team_.Sync();
    const int slice = kBuckets / team_.size();
    for (int i = threadIdx.x; i < slice; i += kThreads) {
      const int b = team_.rank() * slice + i;
      uint32_t count = 0;
      Mass mass = 0;
      team_.ForEach(&s_.own, [&](const Buckets* own) {
        count += own->counts[b];
        mass += Mass{own->high[b]} << 64 | uint64_t{own->middle[b]} << 32 | own->low[b];
      });
      team_.ForEach(s_.counts, [&](uint32_t* counts) { counts[b] = count; });
      team_.ForEach(s_.masses, [&](Mass* masses) { masses[b] = mass; });
    }
    team_.Sync();

    constexpr int kEach = kBuckets / kThreads;
    uint32_t counts[kEach];
    Mass masses[kEach];
    uint32_t count_sum = 0;
    Mass mass_sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      count_sum += counts[i] = s_.counts[threadIdx.x * kEach + i];
      mass_sum += masses[i] = s_.masses[threadIdx.x * kEach + i];
    }
    uint32_t count = count_before + SumBefore(count_sum, s_.count_scratch);
    Mass mass = mass_before + SumBefore(mass_sum, s_.mass_scratch);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int b = threadIdx.x * kEach + i;
      const uint32_t next = count + counts[i];
      if (next - count_before <= kHead) atomicMax(&s_.head, b + 1);
      s_.counts[b] = count;
      s_.masses[b] = mass;
      count = next;
      mass += masses[i];
      if (b == kBuckets - 1) {
        s_.counts[kBuckets] = count;
        s_.masses[kBuckets] = mass;
      }
    }
    __syncthreads();
  }

  // Adds keys to this block's buckets; those outside the range are left out. Step by step for all
  // of them, so that they wait together.
  template <int kCount>
  __device__ void Count(const Division& division, const double (&keys)[kCount]) {
    int buckets[kCount];
    uint32_t low[kCount], middle[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const bool inside = division.Has(keys[j]);
      const uint64_t weight = division.WeightOf(keys[j]);
      buckets[j] = inside ? division.Bucket(keys[j]) : -1;
      low[j] = inside ? static_cast<uint32_t>(weight) : 0;
      middle[j] = inside ? static_cast<uint32_t>(weight >> 32) : 0;  // <= 2^31: a carry fits
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      if (buckets[j] >= 0) atomicAdd(&s_.own.counts[buckets[j]], 1u);
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      if (low[j] != 0 && atomicAdd(&s_.own.low[buckets[j]], low[j]) > ~low[j]) ++middle[j];
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      if (middle[j] != 0 && atomicAdd(&s_.own.middle[buckets[j]], middle[j]) > ~middle[j]) {
        atomicAdd(&s_.own.high[buckets[j]], 1u);
      }
    }
  }

  __device__ int BucketOf(const Need& need) {
    for (int b = threadIdx.x; b < kBuckets; b += kThreads) {
      const Mass before = need.by_count ? Mass{s_.counts[b]} : s_.masses[b];
      const Mass end = need.by_count ? Mass{s_.counts[b + 1]} : s_.masses[b + 1];
      if (before < need.amount && need.amount <= end) s_.bucket = b;
    }
    __syncthreads();
    return s_.bucket;
  }

  // Candidates of all blocks, in any order, into the first block.
  template <typename Keep, typename KeyOf>
  __device__ void Collect(Keep keep, KeyOf key_of) {
    if (team_.rank() == 0 && threadIdx.x == 0) s_.candidates = 0;
    team_.Sync();
    uint32_t* candidates = team_.Of(0, &s_.candidates);
    double* keys = team_.Of(0, s_.keys);
    int32_t* tokens = team_.Of(0, s_.tokens);
    const Values values = values_;
    values.ForEach([=](int token, double logit) {
      if (!keep(logit, token)) return;
      const uint32_t place = atomicAdd(candidates, 1u);
      if (place >= kCandidates) return;
      keys[place] = key_of(logit, token);
      tokens[place] = token;
    });
    team_.Sync();
  }

  // The first block's candidates: by descending key, then by id. A bitonic network; a warp's pairs
  // at most kWarp apart are in 2 * kWarp places that no other warp touches.
  __device__ void Sort(int n) {
    int size = 2;
    while (size < n) size *= 2;
    for (int i = n + static_cast<int>(threadIdx.x); i < size; i += kThreads) {
      s_.keys[i] = -INFINITY;
      s_.tokens[i] = INT32_MAX;
    }
    __syncthreads();
    for (int run = 2; run <= size; run *= 2) {
      for (int distance = run / 2; distance > 0; distance /= 2) {
        if (distance > kWarp || (distance == kWarp && run > 2 * kWarp)) {
          __syncthreads();
        } else {
          __syncwarp();
        }
        for (int i = threadIdx.x; i < size / 2; i += kThreads) {
          const int a = 2 * i - (i & (distance - 1)), b = a + distance;
          const double key_a = s_.keys[a], key_b = s_.keys[b];
          const int32_t token_a = s_.tokens[a], token_b = s_.tokens[b];
          const bool b_first = key_b > key_a || (key_b == key_a && token_b < token_a);
          if (b_first == ((a & run) == 0)) {
            s_.keys[a] = key_b, s_.keys[b] = key_a;
            s_.tokens[a] = token_b, s_.tokens[b] = token_a;
          }
        }
      }
    }
    __syncthreads();
  }

  __device__ Place FindAmongSorted(int bucket, const Need& need) {
    const Division division = division_;
    if (bucket >= sorted_first_ && bucket < sorted_end_) {
      team_.Sync();  // the last place has been read
    } else {
      const bool in_head = bucket < s_.head;
      sorted_first_ = in_head ? 0 : bucket;
      sorted_end_ = in_head ? s_.head : bucket + 1;
      const int first = sorted_first_, end = sorted_end_;
      Collect([=](double logit,
                  int token) { return division.IsIn(division.Key(logit, token), first, end); },
              [=](double logit, int token) { return division.Key(logit, token); });
      if (team_.rank() == 0) Sort(s_.counts[sorted_end_] - s_.counts[sorted_first_]);
    }
    if (team_.rank() == 0) {
      const int n = s_.counts[sorted_end_] - s_.counts[sorted_first_];
      const int each = (n + kThreads - 1) / kThreads;
      const int first = min(n, static_cast<int>(threadIdx.x) * each), end = min(n, first + each);
      Mass sum = 0;
      for (int i = first; i < end; ++i) sum += division.WeightOf(s_.keys[i]);
      __syncthreads();  // mass_scratch is free
      Mass before = s_.masses[sorted_first_] + SumBefore(sum, s_.mass_scratch);
      for (int i = first; i < end; ++i) {
        const Mass after = before + division.WeightOf(s_.keys[i]);
        const bool ends = need.by_count ? s_.counts[sorted_first_] + i + 1 == need.amount
                                        : before < need.amount && need.amount <= after;
        if (ends) {
          Place place;
          place.mass = after;
          place.logit = division.by_token ? division.equal : s_.keys[i];
          place.token = s_.tokens[i];
          team_.ForEach(&s_.place, [&](Place* to) { *to = place; });
        }
        before = after;
      }
    }
    team_.Sync();
    return s_.place;
  }

  const Team& team_;
  SelectorShared& s_;
  const Values& values_;
  const int vocab_;
  Division division_;
  double bottom_ = 0;                      // the smallest logit
  bool all_ = false;                       // every logit is divided, not a part
  int sorted_first_ = 0, sorted_end_ = 0;  // the buckets that the first block has in order
};

}  // namespace mneme::cuda::sampling
