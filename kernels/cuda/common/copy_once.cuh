// CopyAsync16() (common/async_copy.cuh) of what is not expected to be read again soon.
#pragma once

#include "kernels/cuda/common/device_utils.cuh"

namespace mneme::cuda {

__device__ inline void CopyOnce16(void* to, const void* from) {
  asm volatile(
      "{\n"
      ".reg .b64 policy;\n"
      "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, policy;\n"
      "}\n" ::"r"(SharedAddress(to)),
      "l"(from)
      : "memory");
}

}  // namespace mneme::cuda
