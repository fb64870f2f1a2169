// Finds where prefixes of a row's tokens end, in descending order of logits, ties by id, without
// sorting the row.
//
// Logits are counted into buckets by a monotone function of the logit, linear, so that the buckets
// of usual logits are about equally full. A number of tokens ends in a bucket that the counts name.
// For a mass they give bounds, as the probabilities of a bucket are nearly equal: it ends in one of
// few buckets, which alone are sorted, and what comes before them is added up exactly. Whether the
// mass ends there is then known; where rounding has spoilt the bounds, more buckets are tried.
// Buckets with too many tokens to be sorted are divided again; if all of their logits are equal, by
// token id, which is the order among equals. What is found is what a walk over the sorted row
// finds, except where the doubles of that walk round across an edge.
#pragma once

#include <cstdint>

#include "kernels/cuda/sampling/buckets.cuh"
#include "kernels/cuda/sampling/passes.cuh"
#include "kernels/cuda/sampling/sums.cuh"

namespace mneme::cuda::sampling {

class Selector {
 public:
  // Works in Shared().
  __device__ Selector(const Team& team, const Values& values, int vocab)
      : team_(team), values_(values), vocab_(vocab) {}

  // Over the team, of all logits.
  __device__ Extremes FindExtremes() {
    const Values values = values_;
    Extremes found;
    const auto add = [&](int token, double logit) {
      if (logit > -INFINITY) found.Add(MakeExtremes(logit, logit, token));
    };
    if (!values.in_fours) {
      values.ForEach(add);
      return OfTeam(found);
    }
    const FloatExtremes floats =
        FindFloatExtremes(values.logits, values.replaced, values.begin, values.end);
    if (floats.token >= 0) found = MakeExtremes(floats.largest, floats.smallest, floats.token);
    values.ForEachReplaced(add);
    return OfTeam(found);
  }

  // The team's sum of weigh(logit).
  template <typename Weigh>
  __device__ __noinline__ Mass Sum(Weigh weigh) {
    const Values values = values_;
    Mass sum = 0;
    values.ForEach([&](int, auto logit) { sum += weigh(static_cast<double>(logit)); });
    return OfTeam(sum);
  }

  // Before any Find: `extremes` are those of all logits. Masses are e^((logit - largest) * rate);
  // weigh false: zero, for needs by count.
  __device__ void Start(const Extremes& extremes, double rate, bool weigh) {
    division_.top = extremes.largest;
    bottom_ = extremes.smallest;
    division_.rate = rate;
    division_.weigh = weigh;
    total_ = DivideAll(weigh);
    count_ = Shared().counts[kBuckets];
  }
  // The number of all tokens, and their mass.
  __device__ uint32_t count() const { return count_; }
  __device__ Mass mass() const { return total_; }

  __device__ __noinline__ Place Find(Need need) {
    if (sorted_.end > 0) {  // mostly where the prefix before was cut
      team_.Sync();         // which has been read
      const Place place = FindAmongSorted(need);
      if (place.token >= 0) return place;
    }
    for (int margin = 0;; margin = min(kBuckets, 8 * margin + 8)) {
      if (!division_.all) DivideAll(/*adds=*/false);
      const Place place = FindNear(need, margin);
      if (place.token >= 0) return place;
    }
  }

  // The prefix that ends at `place`, of `count` <= kCandidates tokens, in order: lies in keys and
  // tokens of the team's first block.
  __device__ void SortPrefix(const Place& place, int count) {
    const double last = place.logit;
    const int last_token = place.token;
    const Values values = values_;
    StartCandidates();
    values.ForEach([=](int token, double logit) {
      if (logit > last || (logit == last && token <= last_token)) AddCandidate(logit, token);
    });
    GatherCandidates();
    if (team_.rank() == 0) Sort(count);
    sorted_ = {};
  }

 private:
  // The team's.
  __device__ __noinline__ Extremes OfTeam(Extremes found) {
    found = OfWarp(found);
    const int lane = threadIdx.x % kWarp;
    if (lane == 0) Shared().warp_extremes[threadIdx.x / kWarp] = found;
    __syncthreads();
    found = OfWarp(lane < kWarps ? Shared().warp_extremes[lane] : Extremes());
    if (team_.size() > 1) {
      if (threadIdx.x == 0) Shared().extremes = found;
      team_.Sync();
      found = OfWarp(lane < team_.size() ? *team_.Of(lane, &Shared().extremes) : Extremes());
    }
    team_.Sync();
    return found;
  }
  // The team's sum.
  __device__ __noinline__ Mass OfTeam(Mass sum) {
#pragma unroll
    for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) sum += ShuffleXor(sum, lanes);
    if (threadIdx.x % kWarp == 0) Shared().mass_scratch[threadIdx.x / kWarp] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int w = 1; w < kWarps; ++w) sum += Shared().mass_scratch[w];
      Shared().partial = sum;
    }
    team_.Sync();
    sum = 0;
    team_.ForEach(&Shared().partial, [&](const Mass* partial) { sum += *partial; });
    team_.Sync();
    return sum;
  }

  // All logits, down to where probabilities end. Returns their mass, if it is to be added up.
  __device__ Mass DivideAll(bool adds) {
    division_.all = true;
    division_.by_token = false;
    const double spread = division_.top - bottom_;
    const double range = division_.weigh ? fmin(spread, kDeepest / division_.rate) : spread;
    before_ = 0;
    return Divide(division_.top, bottom_, range > 0 ? kBuckets / range : 0.0, 0, adds);
  }

  // The tokens of a bucket, of which there are too many. False where a prefix turns out to end
  // before them.
  __device__ bool DivideAgain(int bucket, const Need& need) {
    const uint32_t count_before = Shared().counts[bucket];
    Extremes inside;
    ForEachBucket([&](int its, int token, double logit) {
      if (its == bucket) inside.Add(MakeExtremes(logit, logit, token));
    });
    inside = OfTeam(inside);
    division_.all = false;
    division_.by_token = inside.largest == inside.smallest;
    if (division_.by_token) {  // by token, a bucket has few enough: kMaxVocab
      division_.equal = inside.largest;
      before_ = Divide(0, -(vocab_ - 1.0), kBuckets / static_cast<double>(vocab_), count_before,
                       division_.weigh);
    } else {
      before_ =
          Divide(inside.largest, inside.smallest, kBuckets / (inside.largest - inside.smallest),
                 count_before, division_.weigh);
    }
    return need.by_count || need.amount > before_;
  }

  // Whether passes.cuh has what goes through the model's logits.
  __device__ bool InPasses() const { return division_.all && values_.in_fours; }
  // visit(bucket, token, logit) for all of this block's; kBuckets: in none.
  template <typename Visit>
  __device__ void ForEachBucket(Visit visit) const {
    const Division division = division_;
    const Values values = values_;
    values.ForEach(
        [&](int token, double logit) { visit(division.BucketOf(logit, token), token, logit); });
  }
  // The same for those of the row's lists.
  template <typename Visit>
  __device__ void ForEachReplacedBucket(Visit visit) const {
    const Division division = division_;
    const Values values = values_;
    values.ForEachReplaced(
        [&](int token, double logit) { visit(division.BucketOf(logit, token), token, logit); });
  }

  // Counts keys, of all blocks, in all blocks. Returns the mass of all logits of a division of all,
  // or of those ahead of another one.
  __device__ __noinline__ Mass Divide(double largest, double smallest, double scale,
                                      uint32_t count_before, bool adds) {
    division_.largest = largest;
    division_.smallest = smallest;
    division_.scale = scale;
    constexpr double kLog2E = 1.4426950408889634;
    const double rate = kLog2E * division_.rate;
    const double highest = division_.by_token ? division_.equal : largest;
    division_.highest = static_cast<float>((highest - division_.top) * rate);
    division_.step = division_.by_token || scale == 0 ? 0 : static_cast<float>(rate / scale);
    const Division division = division_;
    sorted_ = {};
    __syncthreads();
    for (int b = threadIdx.x; b <= kBuckets; b += kThreads) Shared().own[b] = 0;
    __syncthreads();
    Mass mass = 0;
    const auto count_one = [&](int bucket, int, double logit) {
      atomicAdd(&Shared().own[bucket], 1u);
      if (adds && (division.all ? bucket < kBuckets : division.IsAhead(logit))) {
        mass += division.WeightOf(logit);
      }
    };
    if (!InPasses()) {
      ForEachBucket(count_one);
    } else {
      const WholeDivision whole = division.Whole();
      if (adds) {
        mass = CountAndAdd(values_.logits, values_.replaced, values_.begin, values_.end,
                           whole.largest, whole.scale, division.top, division.rate);
      } else {
        CountInBuckets(values_.logits, values_.replaced, values_.begin, values_.end, whole.largest,
                       whole.scale);
      }
      ForEachReplacedBucket(count_one);
    }
    team_.Sync();
    const int slice = kBuckets / team_.size();
    for (int i = threadIdx.x; i < slice; i += kThreads) {
      const int b = team_.rank() * slice + i;
      uint32_t count = 0;
      team_.ForEach(Shared().own, [&](const uint32_t* own) { count += own[b]; });
      team_.ForEach(Shared().counts, [&](uint32_t* counts) { counts[b] = count; });
    }
    team_.Sync();

    uint32_t counts[kEach], sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) sum += counts[i] = Shared().counts[threadIdx.x * kEach + i];
    uint32_t count = count_before + SumBefore(sum, Shared().count_scratch);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int b = threadIdx.x * kEach + i;
      const uint32_t next = count + counts[i];
      Shared().counts[b] = count;
      count = next;
      if (b == kBuckets - 1) Shared().counts[kBuckets] = count;
    }
    __syncthreads();
    return adds ? OfTeam(mass) : Mass{0};
  }

  // Looks for the end of a prefix in the buckets that the counts name, and `margin` more on both
  // sides. Token -1: it is not there.
  __device__ Place FindNear(const Need& need, int margin) {
    for (;;) {
      BucketRange range = RangeOf(need);
      range = {max(range.first - margin, 0), min(range.end + margin, kBuckets)};
      while (CountIn(range) > kCandidates && range.end - range.first > 1) Halve(need, range);
      if (CountIn(range) <= kCandidates) {
        const bool in_head = Shared().counts[range.end] - Shared().counts[0] <= kHead;
        SortBuckets({in_head ? 0 : range.first, range.end});
        return FindAmongSorted(need);
      }
      if (!DivideAgain(range.first, need)) return {0, 0, -1};
    }
  }
  __device__ uint32_t CountIn(const BucketRange& range) const {
    return Shared().counts[range.end] - Shared().counts[range.first];
  }
  // Leaves the half in which a prefix ends, if it ends in `range`.
  __device__ __noinline__ void Halve(const Need& need, BucketRange& range) {
    const int middle = (range.first + range.end) / 2;
    const bool first = need.by_count ? need.amount <= Shared().counts[middle]
                                     : need.amount <= before_ + MassBefore(middle);
    (first ? range.end : range.first) = middle;
  }

  // The team's mass of what lies in the buckets before `end`.
  __device__ Mass MassBefore(int end) {
    const Division division = division_;
    if (!division.weigh || end == 0) return 0;
    Mass mass = 0;
    const auto add = [&](int bucket, int, double logit) {
      if (bucket < end) mass += division.WeightOf(logit);
    };
    if (InPasses()) {
      const WholeDivision whole = division.Whole();
      mass = AddBefore(values_.logits, values_.replaced, values_.begin, values_.end, whole.largest,
                       whole.scale, division.top, division.rate, end);
      ForEachReplacedBucket(add);
    } else {
      ForEachBucket(add);
    }
    return OfTeam(mass);
  }

  // The buckets in one of which a prefix ends.
  __device__ BucketRange RangeOf(const Need& need) {
    __syncthreads();  // the last range has been read
    if (threadIdx.x == 0) Shared().range = {0, kBuckets};
    const int first = threadIdx.x * kEach;
    if (need.by_count) {
      __syncthreads();
      for (int b = first; b < first + kEach; ++b) {
        if (Shared().counts[b] < need.amount && need.amount <= Shared().counts[b + 1])
          Shared().range = {b, b + 1};
      }
    } else {
      const Division division = division_;
      const double amount = ToDouble(need.amount - before_);
      float most[kEach], least[kEach];
      double most_sum = 0, least_sum = 0;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int b = first + i;
        const auto count = static_cast<float>(Shared().counts[b + 1] - Shared().counts[b]);
        most_sum += most[i] = count * division.MostWeight(b);
        least_sum += least[i] = count * division.LeastWeight(b);
      }
      most_sum = SumBefore(most_sum, Shared().sum_scratch);
      __syncthreads();
      least_sum = SumBefore(least_sum, Shared().sum_scratch);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (most_sum < amount && amount <= most_sum + most[i]) Shared().range.first = first + i;
        if (least_sum < amount && amount <= least_sum + least[i])
          Shared().range.end = first + i + 1;
        most_sum += most[i];
        least_sum += least[i];
      }
    }
    __syncthreads();
    return Shared().range;
  }

  // Before the first candidate.
  __device__ void StartCandidates() {
    if (threadIdx.x == 0) Shared().candidates = 0;
    team_.Sync();
  }
  // After the last one: those of all blocks come to lie in the first block.
  __device__ void GatherCandidates() {
    team_.Sync();
    if (team_.size() == 1) return;
    if (team_.rank() > 0) {
      const int count = Shared().candidates;
      __syncthreads();
      if (threadIdx.x == 0) {
        Shared().candidates = atomicAdd(team_.Of(0, &Shared().candidates), count);
      }
      __syncthreads();
      const int first = Shared().candidates;
      double* const keys = team_.Of(0, Shared().keys);
      int32_t* const tokens = team_.Of(0, Shared().tokens);
      for (int i = threadIdx.x; i < min(count, kCandidates - first); i += kThreads) {
        keys[first + i] = Shared().keys[i];
        tokens[first + i] = Shared().tokens[i];
      }
    }
    team_.Sync();
  }

  // The first block's candidates: by descending key, then by id. A bitonic network, whose pairs
  // within kWarp places are a warp's, in registers.
  __device__ __noinline__ void Sort(int n) {
    int size = kWarp;
    while (size < n) size *= 2;
    const int lane = threadIdx.x % kWarp, thread = threadIdx.x;
    double* const keys = Shared().keys;
    int32_t* const tokens = Shared().tokens;
    for (int i = n + thread; i < size; i += kThreads) keys[i] = -INFINITY, tokens[i] = INT32_MAX;
    __syncthreads();
    for (int run = kWarp; run <= size; run *= 2) {
      for (int distance = run / 2; distance >= kWarp; distance /= 2) {
        for (int i = thread; i < size / 2; i += kThreads) {
          const int a = 2 * i - (i & (distance - 1)), b = a + distance;
          const double key_a = keys[a], key_b = keys[b];
          const int32_t token_a = tokens[a], token_b = tokens[b];
          if (IsBefore(key_b, token_b, key_a, token_a) == ((a & run) == 0)) {
            keys[a] = key_b, keys[b] = key_a;
            tokens[a] = token_b, tokens[b] = token_a;
          }
        }
        __syncthreads();
      }
      for (int i = thread; i < size; i += kThreads) {  // whole warps
        double key = keys[i];
        int32_t token = tokens[i];
        for (int of = run == kWarp ? 2 : run; of <= run; of *= 2) {
          const bool descends = (i & of) == 0;
          for (int distance = min(of, kWarp) / 2; distance > 0; distance /= 2) {
            const double other = ShuffleXor(key, distance);
            const int32_t its = ShuffleXor(token, distance);
            const bool first = descends == ((lane & distance) == 0);
            if (IsBefore(other, its, key, token) == first) key = other, token = its;
          }
        }
        keys[i] = key;
        tokens[i] = token;
      }
      __syncthreads();
    }
  }
  __device__ static bool IsBefore(double key, int32_t token, double other, int32_t its) {
    return key > other || (key == other && token < its);
  }

  // Sorts the tokens of some buckets, and adds up what comes before them.
  __device__ __noinline__ void SortBuckets(const BucketRange range) {
    const Division division = division_;
    StartCandidates();
    const auto collect = [&](int bucket, int token, double logit) {
      if (bucket >= range.first && bucket < range.end) {
        AddCandidate(division.KeyOf(logit, token), token);
      }
    };
    if (InPasses()) {
      const WholeDivision whole = division.Whole();
      CollectBuckets(values_.logits, values_.replaced, values_.begin, values_.end, whole.largest,
                     whole.scale, range.first, range.end);
      ForEachReplacedBucket(collect);
    } else {
      ForEachBucket(collect);
    }
    const Mass mass = MassBefore(range.first);
    GatherCandidates();
    if (team_.rank() == 0) {
      if (threadIdx.x == 0) Shared().sorted_before = before_ + mass;
      Sort(Shared().counts[range.end] - Shared().counts[range.first]);
    }
    sorted_ = range;
  }

  // Token -1: the prefix does not end in the buckets that are sorted.
  __device__ __noinline__ Place FindAmongSorted(const Need& need) {
    if (team_.rank() == 0) {
      const Division division = division_;
      const uint32_t count_before = Shared().counts[sorted_.first];
      const int n = Shared().counts[sorted_.end] - count_before;
      const int each = (n + kThreads - 1) / kThreads;
      const int first = min(n, static_cast<int>(threadIdx.x) * each), end = min(n, first + each);
      const auto weight = [&](int i) {
        return division.WeightOf(division.LogitOf(Shared().keys[i]));
      };
      if (threadIdx.x == 0) Shared().place.token = -1;
      Mass sum = 0;
      for (int i = first; i < end; ++i) sum += weight(i);
      __syncthreads();  // mass_scratch is free
      Mass before = Shared().sorted_before + SumBefore(sum, Shared().mass_scratch);
      for (int i = first; i < end; ++i) {
        const Mass after = before + weight(i);
        const bool ends = need.by_count ? count_before + i + 1 == need.amount
                                        : before < need.amount && need.amount <= after;
        if (ends) Shared().place = {after, division.LogitOf(Shared().keys[i]), Shared().tokens[i]};
        before = after;
      }
    }
    team_.Sync();
    return *team_.Of(0, &Shared().place);
  }

  static constexpr int kEach = kBuckets / kThreads;  // buckets of a thread

  const Team& team_;
  const Values& values_;
  const int vocab_;
  Division division_;
  double bottom_ = 0;  // the smallest logit
  Mass total_ = 0;
  uint32_t count_ = 0;
  Mass before_ = 0;          // of what comes before all buckets
  BucketRange sorted_ = {};  // the buckets that the first block has in order
};

}  // namespace mneme::cuda::sampling
