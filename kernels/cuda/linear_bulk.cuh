// Hopper's bulk copies of tensor tiles into the shared memory of a cluster, and the barriers in
// shared memory that count what has arrived. sm_90.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace mneme::cuda {

__device__ inline void InitBarrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
// After initialising, before the barrier of the cluster.
__device__ inline void PublishBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// One arrival, and so many bytes to come before the phase ends.
__device__ inline void ArriveExpecting(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// At the barrier of the same place in block `rank` of the cluster.
__device__ inline void ArriveAt(uint32_t barrier, int rank) {
  asm volatile(
      "{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1; "
      "mbarrier.arrive.shared::cluster.b64 _, [remote]; }" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
// Until the phase of this parity has ended.
__device__ inline void WaitBarrier(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{ .reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra.uni over;\n"
      "bra.uni again;\n"
      "over: }" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// The box of `map` at (column, row), to this block.
__device__ inline void CopyBox(const CUtensorMap* map, uint32_t shared, uint32_t barrier,
                               int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(column), "r"(row)
      : "memory");
}
// The same to the blocks of `mask`, at the same place in each, counted by each one's barrier.
__device__ inline void CopyBoxToAll(const CUtensorMap* map, uint32_t shared, uint32_t barrier,
                                    int column, int row, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(column), "r"(row), "h"(mask)
      : "memory");
}

}  // namespace mneme::cuda
