// Bulk copies of Hopper: a contiguous run of memory travels to shared memory on its own, and a
// barrier in shared memory says when it is there. One thread of a warp starts a copy, the warp
// waits for it.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/device_utils.cuh"

namespace mneme::cuda {

// Makes `barrier` one that a copy at a time announces itself to. For one thread; others may wait on
// it after a barrier of the block or the warp.
__device__ inline void InitBulkBarrier(uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  const uint32_t at = SharedAddress(barrier);
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory");
#endif
}
// After the last InitBulkBarrier() of a thread, before its first copy.
__device__ inline void FenceBulkBarriers() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// For copies that several threads announce or start, and for threads that tell others. A phase of
// `barrier` is over when `arrivals` have come and all bytes expected.
__device__ inline void InitBarrier(uint64_t* barrier, uint32_t arrivals) {
#if __CUDA_ARCH__ >= 900
  const uint32_t at = SharedAddress(barrier);
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
#endif
}
__device__ inline void Arrive(uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  const uint32_t at = SharedAddress(barrier);
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
#endif
}
// An arrival once all CopyAsync16() (common/async_copy.cuh) that this thread has begun are done.
__device__ inline void ArriveAfterCopies(uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  const uint32_t at = SharedAddress(barrier);
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(at) : "memory");
#endif
}
// One arrival, and what copies started by BulkLoad() bring.
__device__ inline void ArriveAndExpect(uint64_t* barrier, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  const uint32_t at = SharedAddress(barrier);
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes)
               : "memory");
#endif
}
// Starts the copy of `bytes`, a multiple of 16, addresses likewise.
__device__ inline void BulkLoad(void* shared, const void* global, uint32_t bytes,
                                uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  const uint32_t to = SharedAddress(shared);
  const uint32_t at = SharedAddress(barrier);
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(global), "r"(bytes), "r"(at)
      : "memory");
#endif
}

// BulkLoad() of what is not expected to be read again soon.
__device__ inline void BulkLoadOnce(void* shared, const void* global, uint32_t bytes,
                                    uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  const uint32_t to = SharedAddress(shared);
  const uint32_t at = SharedAddress(barrier);
  asm volatile(
      "{\n"
      ".reg .b64 policy;\n"
      "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1], %2, [%3], policy;\n"
      "}\n" ::"r"(to),
      "l"(global), "r"(bytes), "r"(at)
      : "memory");
#endif
}
// The same, announced by the thread that starts it: for InitBulkBarrier().
__device__ inline void BulkLoadStreaming(void* shared, const void* global, uint32_t bytes,
                                         uint64_t* barrier) {
  ArriveAndExpect(barrier, bytes);
  BulkLoadOnce(shared, global, bytes, barrier);
}

// Stores to the shared memory of another block of the cluster, which expects the bytes at its own
// `barrier`. Addresses are this block's, as if it sent to itself.
__device__ inline void SendFour(const float4& x, float* to, uint64_t* barrier, int rank) {
#if __CUDA_ARCH__ >= 900
  const uint32_t own_to = SharedAddress(to), own_at = SharedAddress(barrier);
  asm volatile(
      "{\n"
      ".reg .b32 to, at;\n"
      "mapa.shared::cluster.u32 to, %4, %6;\n"
      "mapa.shared::cluster.u32 at, %5, %6;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [to], {%0, %1, %2, %3}, [at];\n"
      "}\n" ::"r"(__float_as_uint(x.x)),
      "r"(__float_as_uint(x.y)), "r"(__float_as_uint(x.z)), "r"(__float_as_uint(x.w)), "r"(own_to),
      "r"(own_at), "r"(rank)
      : "memory");
#endif
}
// A barrier of the cluster in two parts: what comes before the first, in all blocks, comes before
// what is after the second. By all threads, which do not take different branches.
__device__ inline void ArriveAtCluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ inline void WaitForCluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// Waits until a barrier of this block is past a phase. SCOPE: whose writes are seen then.
#define MNEME_WAIT_FOR_PHASE(SCOPE, BARRIER, PHASE) \
  asm volatile(                                     \
      "{\n"                                         \
      ".reg .pred done;\n"                          \
      "again%=:\n"                                  \
      "mbarrier.try_wait.parity" SCOPE              \
      ".shared::cta.b64 done, [%0], %1;\n"          \
      "@!done bra again%=;\n"                       \
      "}\n" ::"r"(SharedAddress(BARRIER)),          \
      "r"(PHASE)                                    \
      : "memory")

// Waits for copy number n of a barrier, counted from 0: phase is n % 2.
__device__ inline void BulkWait(uint64_t* barrier, uint32_t phase) {
#if __CUDA_ARCH__ >= 900
  MNEME_WAIT_FOR_PHASE("", barrier, phase);
#endif
}
// The same for what other blocks of the cluster sent.
__device__ inline void WaitForSent(uint64_t* barrier, uint32_t phase) {
#if __CUDA_ARCH__ >= 900
  MNEME_WAIT_FOR_PHASE(".acquire.cluster", barrier, phase);
#endif
}
#undef MNEME_WAIT_FOR_PHASE

// A place in a ring of kSize barriers, and the phase of its barrier that comes next: BulkWait() for
// the other phase waits for the one before, and not at all in the first round.
template <int kSize>
struct RingPlace {
  int at = 0;
  uint32_t phase = 0;
  __device__ void Next() {
    if (++at == kSize) {
      at = 0;
      phase ^= 1;
    }
  }
};

}  // namespace mneme::cuda
