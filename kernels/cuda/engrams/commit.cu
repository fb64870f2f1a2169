// Which sessions begin a segment, and the end of the one before it.
#include <algorithm>
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/engrams/engrams.h"
#include "kernels/cuda/engrams/order.cuh"
#include "kernels/cuda/engrams/store.cuh"

namespace mneme::cuda::engrams {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarp;

// One warp.
__global__ void __launch_bounds__(kWarp)
    FindKernel(const int32_t* offsets, const int32_t* slots, const int64_t* positions, int rows,
               int segment, int first, int most, int working, int attended,
               CrossingArrays crossings, int32_t* working_entries, int32_t* attended_entries,
               int32_t* report_range) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int lane = threadIdx.x;
  int found = 0;
  for (int base = 0; base < rows; base += kWarp) {
    const int row = base + lane;
    bool crosses = false;
    int64_t position = 0;
    if (row < rows) {
      position = positions[row];
      crosses = slots[row] >= 0 && offsets[row] < offsets[row + 1] && position > 0 &&
                position % segment == 0;
    }
    const unsigned votes = __ballot_sync(kAllLanes, crosses);
    const int place = found - first + __popc(votes & ((1u << lane) - 1));
    if (crosses && place >= 0 && place < most) {
      crossings.slots[place] = slots[row];
      crossings.segments[place] = static_cast<int32_t>(position / segment);
    }
    found += __popc(votes);
  }
  const int count = min(max(found - first, 0), most);
  for (int i = count + lane; i < most; i += kWarp) {
    crossings.slots[i] = -1;
    crossings.segments[i] = 0;
  }
  if (lane == 0) {
    working_entries[0] = attended_entries[0] = 0;
    working_entries[1] = count * working;
    attended_entries[1] = count * attended;
    if (report_range != nullptr) {
      report_range[0] = report_range[1];
      report_range[1] += count;
    }
  }
}

struct CommitProblem {
  EngramRules rules;
  Store store;
  CrossingArrays crossings;
  Field sums;
  int layers, heads, segment;
  double shares;  // of attention's weights that a lifespan's gain is made of
  Reports reports;
};

// Warps take layers and heads, lanes engrams. `attended`: where it reports whom the segment
// attended to, or null.
__device__ void AddGains(const CommitProblem& p, int slot, int32_t* attended) {
  __shared__ double parts[kWarps][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int room = p.rules.recalled();
  const int32_t* facts = p.store.facts(slot);
  const int count = facts[kEngramsRecalled], columns = facts[kEngramColumns];
  float* lifespans = p.store.lifespans(slot);
  for (int base = 0; base < count; base += kWarp) {
    const int i = base + lane;
    double part = 0;
    for (int of = warp; of < p.layers * p.heads && i < count; of += kWarps) {
      part += p.sums.At<const float>(slot, of / p.heads)[of % p.heads * room + i];
    }
    parts[warp][lane] = part;
    __syncthreads();
    if (warp == 0 && i < count) {
      double weight = 0;
      for (int w = 0; w < kWarps; ++w) weight += parts[w][lane];
      const auto gain = static_cast<float>(weight / p.shares * columns * p.rules.lifespan_scale);
      const int engram = p.store.recalled(slot)[i];
      if (attended != nullptr) {
        attended[3 * i] = static_cast<int32_t>(p.store.births(slot)[engram]);
        attended[3 * i + 1] = static_cast<int32_t>(p.store.types(slot)[engram]);
        attended[3 * i + 2] = __float_as_int(static_cast<float>(weight / (p.shares / p.segment)));
      }
      p.store.gains(slot)[engram] = gain;
      lifespans[engram] += gain;
    }
    __syncthreads();
  }
}

// One block per crossing.
__global__ void __launch_bounds__(kThreads, 1)
    CommitKernel(const __grid_constant__ CommitProblem p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  extern __shared__ uint64_t keys[];  // twice PowerFrom(capacity)
  const int slot = p.crossings.slots[blockIdx.x];
  if (slot < 0) return;
  const int segment = p.crossings.segments[blockIdx.x];
  int32_t* const report = p.reports.Of(static_cast<int>(blockIdx.x));
  if (report != nullptr && threadIdx.x == 0) {
    report[kReportSlot] = slot;
    report[kReportSegment] = segment;
    report[kReportAttended] = segment < 2 ? 0 : p.store.facts(slot)[kEngramsRecalled];
  }
  if (segment < 2) return;
  const int capacity = p.store.capacity;
  EngramType* const types = p.store.types(slot);
  float* const lifespans = p.store.lifespans(slot);
  const uint32_t* const births = p.store.births(slot);
  AddGains(p, slot, report == nullptr ? nullptr : report + kEngramReportWords);
  const auto for_engrams = [&](const auto& visit) {
    for (int i = threadIdx.x; i < capacity; i += kThreads) {
      if (types[i] != EngramType::kFree) visit(i);
    }
    __syncthreads();
  };
  const auto bury = [&](int i) {
    if (!(lifespans[i] > 0)) types[i] = EngramType::kFree;
  };
  for_engrams([&](int i) { lifespans[i] -= 1; });
  if (!p.rules.deaths_last) for_engrams(bury);

  for_engrams([&](int i) {
    if (types[i] == EngramType::kWorking) types[i] = EngramType::kShortTerm;
  });
  const int short_term = Choose<kThreads>(
      capacity, [&](int i) { return types[i] == EngramType::kShortTerm; },
      [&](int i, int place) { keys[place] = KeyOfBirth(births[i], i); });
  if (short_term > p.rules.short_term) {
    Sort<kThreads>(keys, short_term);
    for (int i = threadIdx.x; i < short_term - p.rules.short_term; i += kThreads) {
      types[EngramOfKey(keys[i])] = EngramType::kLongTerm;
    }
    __syncthreads();
  }
  if (p.rules.deaths_last) for_engrams(bury);

  const int free = Choose<kThreads>(
      capacity, [&](int i) { return types[i] == EngramType::kFree; }, [](int, int) {});
  if (free < p.rules.working) {
    const int long_term = Choose<kThreads>(
        capacity, [&](int i) { return types[i] == EngramType::kLongTerm; },
        [&](int i, int place) { keys[place] = KeyOfBirth(births[i], i); });
    Sort<kThreads>(keys, long_term);
    // Behind them the same by lifespan, which is above 0: older ones first of equal ones.
    uint64_t* const by_lifespan = keys + PowerFrom(capacity);
    for (int i = threadIdx.x; i < long_term; i += kThreads) {
      const uint32_t bits = __float_as_uint(lifespans[EngramOfKey(keys[i])]);
      by_lifespan[i] = uint64_t{bits} << 32 | static_cast<uint32_t>(i);
    }
    Sort<kThreads>(by_lifespan, long_term);
    const int evicted = min(p.rules.working - free, long_term);
    for (int i = threadIdx.x; i < evicted; i += kThreads) {
      types[EngramOfKey(keys[IndexOfKey(by_lifespan[i])])] = EngramType::kFree;
    }
    if (threadIdx.x == 0) p.store.facts(slot)[kEngramsEvicted] += evicted;
  }

  const int of_layer = p.heads * p.rules.recalled();
  for (int layer = 0; layer < p.layers; ++layer) {
    float* const sums = p.sums.At<float>(slot, layer);
    for (int i = threadIdx.x; i < of_layer; i += kThreads) sums[i] = 0;
  }
}

}  // namespace

void FindCrossings(Device& device, const FindCrossingsArgs& args) {
  LaunchOverlapping(device, "FindCrossings", FindKernel, 1, kWarp, 0, 1,
                    args.row_offsets.as<const int32_t>(), args.slots.as<const int32_t>(),
                    args.positions.as<const int64_t>(), static_cast<int>(args.slots.shape[0]),
                    args.segment, args.first, static_cast<int>(args.crossings.most()), args.working,
                    args.attended, CrossingArrays(args.crossings),
                    args.working_entries.as<int32_t>(), args.attended_entries.as<int32_t>(),
                    args.report_range.empty() ? nullptr : args.report_range.as<int32_t>());
}

void CommitEngrams(Device& device, const CommitEngramsArgs& args) {
  CHECK_LE(args.store.capacity, kMostEngrams) << "engrams of a session";
  CHECK(args.store.lifespans.dtype == DType::kF32 && args.sums.dtype == DType::kF32)
      << "CommitEngrams";
  const CommitProblem problem = {
      .rules = args.rules,
      .store = Store(args.store),
      .crossings = CrossingArrays(args.crossings),
      .sums = Field(args.sums),
      .layers = args.layers,
      .heads = args.heads,
      .segment = args.segment,
      .shares = static_cast<double>(args.layers) * args.heads * args.segment,
      .reports = Reports(args.reports)};
  const int64_t keys = 2 * int64_t{PowerFrom(args.store.capacity)};
  LaunchOverlapping(device, "CommitEngrams", CommitKernel, static_cast<int>(args.crossings.most()),
                    kThreads, keys * static_cast<int64_t>(sizeof(uint64_t)), 1, problem);
}

}  // namespace mneme::cuda::engrams
