// Hopper's bulk copies of tensor tiles into shared memory, with the barriers of
// common/bulk_copy.cuh, and other copies that announce themselves there. sm_90.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/common/bulk_copy.cuh"

namespace mneme::cuda::linear {

// This thread's arrival, once all its CopyAsync16() until now are done.
__device__ inline void ArriveAfterCopies(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(SharedAddress(barrier))
               : "memory");
}
// Has a map at hand before its first box is asked for.
__device__ inline void FetchMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
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

}  // namespace mneme::cuda::linear
