// Bulk copies of Hopper: a contiguous run of memory travels to shared memory on its own, and a
// barrier in shared memory says when it is there. One thread of a warp starts a copy, the warp
// waits for it.
#pragma once

#include <cstdint>

namespace mneme::cuda {

// Starts the copy of `bytes`, a multiple of 16, addresses likewise. The source is not expected to
// be read again soon. Uses `barrier` for the first and only time; the other threads may wait on it
// after a barrier of the block or the warp.
__device__ inline void BulkLoadStreaming(void* shared, const void* global, uint32_t bytes,
                                         uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(barrier));
  asm volatile(
      "{\n"
      ".reg .b64 policy;\n"
      "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "mbarrier.init.shared::cta.b64 [%3], 1;\n"
      "fence.mbarrier_init.release.cluster;\n"
      "fence.proxy.async.shared::cta;\n"
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%3], %2;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1], %2, [%3], policy;\n"
      "}\n" ::"r"(to),
      "l"(global), "r"(bytes), "r"(at)
      : "memory");
#endif
}

__device__ inline void BulkWait(uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(barrier));
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n"
      "@!done bra again%=;\n"
      "}\n" ::"r"(at)
      : "memory");
#endif
}

}  // namespace mneme::cuda
