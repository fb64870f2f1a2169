// Recall, one block per crossing: choices, seeds and the walk among lists in shared memory, a warp
// for each row of counts.
#include <algorithm>
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/engrams/counts.cuh"
#include "kernels/cuda/engrams/engrams.h"
#include "kernels/cuda/engrams/order.cuh"
#include "kernels/cuda/engrams/store.cuh"

namespace mneme::cuda::engrams {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarp;

struct RetrieveProblem {
  EngramRules rules;
  Store store;
  CrossingArrays crossings;
  const float* scores;
  int first;                // crossing of the launch
  const uint16_t* counted;  // [crossings of the launch, capacity, capacity]: of a history
  Reports reports;
  Field own_seeds;  // EngramStore::seed

  // The seed of a session's draws.
  __device__ uint64_t SeedOf(int slot) const {
    if (own_seeds.base == nullptr) return rules.seed;
    const auto* words = own_seeds.At<const uint32_t>(slot, 0);
    return rules.seed ^ (words[0] | uint64_t{words[1]} << 32);
  }
};

// Short-term and long-term engrams are *old* ones. Lists are oldest first.
struct Lists {
  uint64_t* keys;            // [PowerFrom(capacity)]
  uint16_t* old_slots;       // of each old engram
  uint16_t *shorts, *longs;  // short-term and long-term ones, by their places among the old ones
  uint16_t* long_slots;
  uint16_t *frontier, *reach, *reach_slots;  // by their places among the long-term ones
  uint8_t* is_long;                          // of each old engram
  uint8_t* is_recalled;                      // likewise
  uint8_t* found;                            // Found of each long-term engram

  __device__ Lists(uint64_t* shared, int capacity) : keys(shared) {
    auto* halves = reinterpret_cast<uint16_t*>(keys + PowerFrom(capacity));
    for (uint16_t** list :
         {&old_slots, &shorts, &longs, &long_slots, &frontier, &reach, &reach_slots}) {
      *list = halves;
      halves += capacity;
    }
    auto* bytes = reinterpret_cast<uint8_t*>(halves);
    for (uint8_t** list : {&is_long, &is_recalled, &found}) {
      *list = bytes;
      bytes += capacity;
    }
  }
  static int64_t Bytes(int capacity) {
    return PowerFrom(capacity) * static_cast<int64_t>(sizeof(uint64_t)) + int64_t{17} * capacity;
  }
};

enum Found : uint8_t { kNotFound, kFoundBefore, kFoundNow };

__device__ inline unsigned WarpMost(unsigned x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    x = max(x, __shfl_xor_sync(kAllLanes, x, offset));
  }
  return x;
}

// One warp draws among the long-term engrams that `counts` has most of.
__device__ int SeedOf(const Lists& lists, const uint16_t* counts, int count,
                      const EngramRules& rules, uint64_t draws, int segment, uint32_t birth) {
  const int lane = threadIdx.x % kWarp;
  const int rounds = (count + kWarp - 1) / kWarp;
  unsigned own = 0;
  for (int k = lane; k < count; k += kWarp) own = max(own, unsigned{counts[lists.long_slots[k]]});
  const unsigned most = WarpMost(own);
  const auto tied = [&](int round) {
    const int k = round * kWarp + lane;
    return __ballot_sync(kAllLanes, k < count && counts[lists.long_slots[k]] == most);
  };
  int wanted = 0;
  if (rules.random_ties) {
    int ties = 0;
    for (int round = 0; round < rounds; ++round) ties += __popc(tied(round));
    wanted = static_cast<int>(EngramDraw(draws, static_cast<uint64_t>(segment), birth, ties));
  }
  for (int round = 0;; ++round) {
    unsigned votes = tied(round);
    const int here = __popc(votes);
    if (wanted >= here) {
      wanted -= here;
      continue;
    }
    for (; wanted > 0; --wanted) votes &= votes - 1;
    return round * kWarp + __ffs(static_cast<int>(votes)) - 1;
  }
}

// One warp finds the place in lists.reach of the engram that `counts` has most of, the oldest of
// equal ones.
__device__ int NextOf(const Lists& lists, const uint16_t* counts, int reach) {
  unsigned best = 0;
  for (int place = threadIdx.x % kWarp; place < reach; place += kWarp) {
    const unsigned key = unsigned{counts[lists.reach_slots[place]]} << 16 |
                         static_cast<unsigned>(kMostEngrams - 1 - place);
    best = max(best, key);
  }
  return kMostEngrams - 1 - static_cast<int>(WarpMost(best) & 0xffff);
}

// The sum of part(i) for i < n, in all threads of the block.
template <typename Part>
__device__ float BlockSum(int n, const Part& part) {
  __shared__ float parts[kWarps];
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += kThreads) sum += part(i);
  sum = WarpSum(sum);
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = sum;
  __syncthreads();
  sum = WarpSum(threadIdx.x % kWarp < kWarps ? parts[threadIdx.x % kWarp] : 0.0f);
  __syncthreads();
  return sum;
}

__global__ void __launch_bounds__(kThreads, 1)
    RetrieveKernel(const __grid_constant__ RetrieveProblem p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  extern __shared__ uint64_t shared[];
  __shared__ int null_recalled;
  const int crossing = p.first + static_cast<int>(blockIdx.x);
  const int slot = p.crossings.slots[crossing], segment = p.crossings.segments[crossing];
  if (slot < 0) return;
  const EngramRules& rules = p.rules;
  const int capacity = p.store.capacity, warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const Lists lists(shared, capacity);
  const EngramType* const types = p.store.types(slot);
  const uint32_t* const births = p.store.births(slot);
  const float* const scores = p.scores + int64_t{crossing} * (capacity + 1);
  const auto counts_of = [&](int engram) -> const uint16_t* {
    if (p.counted == nullptr) return p.store.counts(slot, engram);
    return p.counted + (int64_t{blockIdx.x} * capacity + engram) * capacity;
  };
  const auto for_all = [](int n, const auto& visit) {
    for (int i = threadIdx.x; i < n; i += kThreads) visit(i);
    __syncthreads();
  };

  const int old = Choose<kThreads>(
      capacity,
      [&](int i) {
        return types[i] == EngramType::kShortTerm || types[i] == EngramType::kLongTerm;
      },
      [&](int i, int place) { lists.keys[place] = KeyOfBirth(births[i], i); });
  Sort<kThreads>(lists.keys, old);
  if (threadIdx.x == 0) null_recalled = 0;
  for_all(old, [&](int i) {
    const int engram = EngramOfKey(lists.keys[i]);
    lists.old_slots[i] = static_cast<uint16_t>(engram);
    lists.is_long[i] = types[engram] == EngramType::kLongTerm;
    lists.is_recalled[i] = 0;
  });
  const int longs = Choose<kThreads>(
      old, [&](int i) { return lists.is_long[i] != 0; },
      [&](int i, int place) {
        lists.longs[place] = static_cast<uint16_t>(i);
        lists.long_slots[place] = lists.old_slots[i];
        lists.found[place] = kNotFound;
      });
  const int shorts = Choose<kThreads>(
      old, [&](int i) { return lists.is_long[i] == 0; },
      [&](int i, int place) { lists.shorts[place] = static_cast<uint16_t>(i); });

  for_all(shorts,
          [&](int s) { lists.keys[s] = KeyOfScore(scores[lists.old_slots[lists.shorts[s]]], s); });
  Sort<kThreads>(lists.keys, shorts);
  for_all(min(shorts, rules.recalled_short),
          [&](int i) { lists.is_recalled[lists.shorts[IndexOfKey(lists.keys[i])]] = 1; });

  bool ran_out = false;
  int found = 0;
  const uint64_t draws = p.SeedOf(slot);
  if (longs > 0) {
    for (int s = warp; s < shorts; s += kWarps) {
      const int source = lists.shorts[s], engram = lists.old_slots[source];
      int seed = 0;
      if (lists.is_recalled[source] != 0) {
        seed = SeedOf(lists, counts_of(engram), longs, rules, draws, segment, births[engram]);
      } else if (!rules.extra_seeds) {
        continue;
      } else if (rules.random_ties) {
        seed = static_cast<int>(
            EngramDraw(draws, static_cast<uint64_t>(segment), births[engram], longs));
      }
      if (lane == 0) lists.found[seed] = kFoundNow;
    }
    __syncthreads();
    // Those that were found now, and not before.
    const auto advance = [&] {
      return Choose<kThreads>(
          longs, [&](int k) { return lists.found[k] == kFoundNow; },
          [&](int k, int place) {
            lists.frontier[place] = static_cast<uint16_t>(k);
            lists.found[k] = kFoundBefore;
          });
    };
    int frontier = advance();
    found = frontier;
    for (int round = 0; round < rules.depth; ++round) {
      const int reach = Choose<kThreads>(
          longs, [&](int k) { return lists.found[k] == kNotFound; },
          [&](int k, int place) {
            lists.reach[place] = static_cast<uint16_t>(k);
            lists.reach_slots[place] = lists.long_slots[k];
          });
      ran_out = reach == 0;
      if (ran_out || frontier == 0) break;
      for (int c = warp; c < frontier; c += kWarps) {
        const int engram = lists.long_slots[lists.frontier[c]];
        const int next = NextOf(lists, counts_of(engram), reach);
        if (lane == 0) lists.found[lists.reach[next]] = kFoundNow;
      }
      __syncthreads();
      frontier = advance();
      found += frontier;
    }
    // Behind the others the vector of zeros, whose score lies behind those of slots.
    const bool with_null = ran_out && rules.null_candidate;
    Choose<kThreads>(
        longs, [&](int k) { return lists.found[k] != kNotFound; },
        [&](int k, int place) { lists.keys[place] = KeyOfScore(scores[lists.long_slots[k]], k); });
    if (with_null && threadIdx.x == 0) lists.keys[found] = KeyOfScore(scores[capacity], longs);
    const int candidates = found + (with_null ? 1 : 0);
    Sort<kThreads>(lists.keys, candidates);
    for_all(min(candidates, rules.recalled_long), [&](int i) {
      const int k = IndexOfKey(lists.keys[i]);
      if (k == longs) {
        null_recalled = 1;
      } else {
        lists.is_recalled[lists.longs[k]] = 1;
      }
    });
  } else if (rules.recalls_oldest && rules.recalled_long > 0 && shorts > 0) {
    if (threadIdx.x == 0) lists.is_recalled[lists.shorts[0]] = 1;
    __syncthreads();
  }

  // What fires, in place of a list that is done with: the recalled ones and, behind them, the
  // working ones.
  uint16_t* const active = lists.reach;
  int32_t* const recalled_slots = p.store.recalled(slot);
  const int recalled = Choose<kThreads>(
      old, [&](int i) { return lists.is_recalled[i] != 0; },
      [&](int i, int place) {
        active[place] = lists.old_slots[i];
        recalled_slots[place] = lists.old_slots[i];
      });
  for (int i = recalled + static_cast<int>(threadIdx.x); i < rules.recalled(); i += kThreads) {
    recalled_slots[i] = -1;
  }
  const int fires =
      recalled +
      Choose<kThreads>(
          capacity, [&](int i) { return types[i] == EngramType::kWorking; },
          [&](int i, int place) { active[recalled + place] = static_cast<uint16_t>(i); });
  if (p.counted == nullptr) {
    for (int i = warp; i < fires; i += kWarps) {
      uint16_t* const counts = p.store.counts(slot, active[i]);
      for (int j = lane; j < fires; j += kWarp) {
        const unsigned count = counts[active[j]];
        counts[active[j]] = static_cast<uint16_t>(min(count + 1, 0xffffu));
      }
    }
  } else {
    WriteFirings<kThreads>(p.store, slot, segment, active, fires);
  }
  if (threadIdx.x == 0) {
    const bool left_out = rules.recalled_short < shorts || null_recalled != 0;
    int32_t* const facts = p.store.facts(slot);
    facts[kEngramsRecalled] = recalled;
    facts[kEngramColumns] = recalled + (rules.null_column && left_out ? 1 : 0);
    facts[kEngramsFound] = found;
    facts[kEngramNullCandidate] = ran_out && rules.null_candidate ? 1 : 0;
    facts[kEngramNullRecalled] = null_recalled;
    facts[kEngramHistoryWrapped] = p.store.steps > 0 ? max(0, segment - p.store.steps) : 0;
  }
  int32_t* const report = p.reports.Of(crossing);
  if (report == nullptr) return;
  const auto age = [&](int i) {
    return segment - 1 -
           static_cast<int>(births[recalled_slots[i]] / static_cast<uint32_t>(rules.working));
  };
  const float* const lifespans = p.store.lifespans(slot);
  const float ages = BlockSum(recalled, [&](int i) {
    return types[recalled_slots[i]] == EngramType::kLongTerm ? static_cast<float>(age(i)) : 0.0f;
  });
  const float long_ones = BlockSum(recalled, [&](int i) {
    return types[recalled_slots[i]] == EngramType::kLongTerm ? 1.0f : 0.0f;
  });
  const float sum = BlockSum(
      capacity, [&](int i) { return types[i] == EngramType::kFree ? 0.0f : lifespans[i]; });
  if (threadIdx.x == 0) {
    report[kReportShortTerm] = shorts;
    report[kReportLongTerm] = longs;
    report[kReportFound] = found;
    report[kReportRecalled] = recalled;
    report[kReportRecalledLong] = static_cast<int32_t>(long_ones);
    report[kReportRecalledAges] = __float_as_int(ages);
    report[kReportLifespans] = __float_as_int(sum);
    report[kReportEvicted] = p.store.facts(slot)[kEngramsEvicted];
  }
}

}  // namespace

void RetrieveEngrams(Device& device, const RetrieveEngramsArgs& args) {
  CHECK_LE(args.store.capacity, kMostEngrams) << "engrams of a session";
  RetrieveProblem problem = {.rules = args.rules,
                             .store = Store(args.store),
                             .crossings = CrossingArrays(args.crossings),
                             .scores = args.scores.as<const float>(),
                             .first = 0,
                             .counted = nullptr,
                             .reports = Reports(args.reports),
                             .own_seeds = Field(args.store.seed)};
  const int most = static_cast<int>(args.crossings.most());
  const int together =
      args.store.steps > 0 ? std::min(most, CountedTogether(args.store.capacity)) : most;
  for (; problem.first < most; problem.first += together) {
    const int count = std::min(together, most - problem.first);
    if (args.store.steps > 0) {
      problem.counted =
          CountFirings(device, problem.store, problem.crossings, problem.first, count);
      if (problem.counted == nullptr) return;
    }
    LaunchOverlapping(device, "RetrieveEngrams", RetrieveKernel, count, kThreads,
                      Lists::Bytes(args.store.capacity), 1, problem);
  }
}

}  // namespace mneme::cuda::engrams
