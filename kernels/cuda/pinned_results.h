// Waiting for results that a kernel writes to pinned memory.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <thread>

#include "kernels/cuda/device.h"

namespace mneme::cuda {

// What stands where a result will be. The kernel writes the result last, after a system-wide fence.
inline constexpr int32_t kNoResultYet = std::numeric_limits<int32_t>::min();

// Waits until all results are there, which is microseconds before the stream says that the kernel
// has ended. Whatever keeps a kernel from writing them has stopped the stream, so that is looked at
// now and then, and others may have the processor.
inline void AwaitResults(Device& device, const int32_t* results, int64_t count) {
  constexpr int kLooks = 1 << 10;  // a microsecond or two
  const volatile int32_t* const seen = results;
  for (int64_t i = 0; i < count; ++i) {
    for (int looks = 1; seen[i] == kNoResultYet; ++looks) {
      if (looks % kLooks != 0) continue;
      std::this_thread::yield();
      const cudaError_t state = cudaStreamQuery(device.stream());
      if (state == cudaErrorNotReady || seen[i] != kNoResultYet) continue;
      return device.Check(state == cudaSuccess ? cudaErrorUnknown : state, "waiting for results");
    }
  }
  std::atomic_thread_fence(std::memory_order_acquire);
}

}  // namespace mneme::cuda
