// Copies of a thread from global to shared memory that do not wait. All addresses are aligned to
// what is copied.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/device_utils.cuh"

namespace mneme::cuda {

__device__ inline void CopyAsync4(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(SharedAddress(to)), "l"(from)
               : "memory");
}
__device__ inline void CopyAsync16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(SharedAddress(to)), "l"(from)
               : "memory");
}
// Sixteen bytes; zeros if not `valid`, in which case nothing is read.
__device__ inline void CopyAsync16(uint32_t shared, const void* global, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(bytes)
               : "memory");
}
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most kPending of this thread's groups are still under way.
template <int kPending>
__device__ inline void WaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
// Until all copies of this thread are done.
__device__ inline void AwaitCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace mneme::cuda
