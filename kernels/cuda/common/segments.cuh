// How warps find their way among a step's segments (kernels.h).
#pragma once

#include <cstdint>

#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/kernels.h"

namespace mneme::cuda {

// Segments (kernels.h) for the device.
struct SegmentArrays {
  const int *offsets, *slots, *memories, *fresh;
  int count;
};
inline SegmentArrays ArraysOf(const Segments& segments) {
  return {segments.offsets.as<const int>(), segments.slots.as<const int>(),
          segments.memories.as<const int>(), segments.fresh.as<const int>(), segments.count};
}

struct Segment {
  __device__ Segment(const SegmentArrays& p, int s)  // loads that share one latency
      : first(p.offsets[s]),
        end(p.offsets[s + 1]),
        slot(p.slots[s]),
        memory(p.memories[s]),
        fresh(p.fresh[s]) {}
  int first, end, slot, memory, fresh;
};

// Segments in order, for a warp: each lane loads one, so that going on to the next waits for none.
class SegmentWalk {
 public:
  __device__ SegmentWalk(const SegmentArrays& p, int from) : p_(p), base_(from), own_(Take(from)) {}

  __device__ Segment At(int n) {
    if (n - base_ >= kWarp) base_ = n, own_ = Take(n);
    Segment segment = own_;
    for (int* part :
         {&segment.first, &segment.end, &segment.slot, &segment.memory, &segment.fresh}) {
      *part = __shfl_sync(kAllLanes, *part, n - base_);
    }
    return segment;
  }

 private:
  // Past the last segment: the last one again, which is not asked for.
  __device__ Segment Take(int from) const {
    return Segment(p_, min(from + static_cast<int>(threadIdx.x % kWarp), p_.count - 1));
  }

  const SegmentArrays& p_;
  int base_;
  Segment own_;
};

// The last segment for which `starts` holds, as it does for all before it. Called by whole warps.
template <typename Starts>
__device__ inline int LastSegment(const SegmentArrays& p, const Starts& starts) {
  const int lane = threadIdx.x % kWarp;
  int low = 0, high = p.count;  // starts(low), not starts(high)
  while (high - low > 1) {
    const int step = (high - low + kWarp - 1) / kWarp;
    const int probe = low + lane * step;
    const bool started = probe < high && starts(probe);
    low += (__popc(__ballot_sync(kAllLanes, started)) - 1) * step;
    high = min(high, low + step);
  }
  return low;
}
// The segment that has an entry: the last one that starts at or before it. Called by whole warps.
__device__ inline int SegmentOf(const SegmentArrays& p, int entry) {
  return LastSegment(p, [&](int s) { return p.offsets[s] <= entry; });
}

// Whether a convolution's channels can be read four at a time.
inline bool InFours(const ShortConvArgs& args) {
  return args.x.shape[1] % 4 == 0 && AreAligned(args.weight, args.x, args.y, args.window);
}

}  // namespace mneme::cuda
