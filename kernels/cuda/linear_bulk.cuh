// Hopper's bulk copies of tensor tiles into the shared memory of a cluster, with the barriers of
// bulk_copy.cuh. sm_90.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/bulk_copy.cuh"

namespace mneme::cuda {

// At the barrier of the same place in block `rank` of the cluster.
__device__ inline void ArriveAt(uint64_t* barrier, int rank) {
  asm volatile(
      "{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1; "
      "mbarrier.arrive.shared::cluster.b64 _, [remote]; }" ::"r"(SharedAddress(barrier)),
      "r"(rank)
      : "memory");
}
// The box of `map` at (column, row), to this block.
__device__ inline void CopyBox(const CUtensorMap* map, uint32_t shared, uint64_t* barrier,
                               int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(shared),
      "l"(map), "r"(SharedAddress(barrier)), "r"(column), "r"(row)
      : "memory");
}
// The same to the blocks of `mask`, at the same place in each, counted by each one's barrier.
__device__ inline void CopyBoxToAll(const CUtensorMap* map, uint32_t shared, uint64_t* barrier,
                                    int column, int row, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared),
      "l"(map), "r"(SharedAddress(barrier)), "r"(column), "r"(row), "h"(mask)
      : "memory");
}

}  // namespace mneme::cuda
