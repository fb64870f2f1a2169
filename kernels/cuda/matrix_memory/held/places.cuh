// Where a head's part of an entry, or of a place of pending writes, is.
#pragma once

#include "kernels/cuda/matrix_memory/memory.cuh"

namespace mneme::cuda::matrix_memory::held {

// Among keys, of which some heads may share one.
__device__ inline int64_t KeyAt(const Problem& p, int place, int head) {
  return int64_t{place} * p.heads + head / (p.value_heads / p.heads);
}
// Among what every head has of its own.
__device__ inline int64_t HeadAt(const Problem& p, int place, int head) {
  return int64_t{place} * p.value_heads + head;
}

}  // namespace mneme::cuda::matrix_memory::held
