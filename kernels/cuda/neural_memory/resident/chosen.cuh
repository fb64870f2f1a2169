// Which segments of a step a kernel takes, found by all threads of a block, so that blocks that
// each do so share them evenly.
#pragma once

#include <cstdint>

#include "kernels/cuda/neural_memory/resident/head.cuh"

namespace mneme::cuda::neural_memory::resident {

// A block's shared memory: places, and counts of warps.
constexpr int kChosenBytes = (kThreads + 2 * kWarps) * static_cast<int>(sizeof(uint16_t));

// The segments from `base` on, at most as many as threads, that are no padding and for which
// `chooses` holds: their places behind it go to `chosen`. Returns how many they are; begins and
// ends with the block's threads together.
template <typename Chooses>
__device__ inline int ChooseSegments(const Params& p, int base, uint16_t* chosen,
                                     const Chooses& chooses) {
  uint16_t* const counts = chosen + kThreads;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  bool is_chosen = false;
  if (base + thread < p.segments.count) {
    const Segment segment(p.segments, base + thread);
    is_chosen = segment.slot >= 0 && segment.first != segment.end && chooses(segment);
  }
  const unsigned of_warp = __ballot_sync(kAllLanes, is_chosen);
  if (lane == 0) counts[warp] = static_cast<uint16_t>(__popc(of_warp));
  __syncthreads();
  int ahead = 0, all = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) ahead += counts[w];
    all += counts[w];
  }
  if (is_chosen) {
    chosen[ahead + __popc(of_warp & ((1u << lane) - 1))] = static_cast<uint16_t>(thread);
  }
  __syncthreads();
  return all;
}

}  // namespace mneme::cuda::neural_memory::resident
