// A row of a matrix of any size, on its way between the state and a warp's shared memory. A lane
// has every 32nd element, and touches no other.
#pragma once

#include <type_traits>

#include "kernels/cuda/matrix_memory/memory.cuh"

namespace mneme::cuda::matrix_memory {

template <typename T>
__device__ inline void ReadSharedRow(const T* row, bool fresh, int key_dim, float* s) {
  const float scale = fresh ? 0.0f : RowScale(row, key_dim);
  for (int d = threadIdx.x % kWarp; d < key_dim; d += kWarp) {
    s[d] = fresh ? 0.0f : scale * static_cast<float>(row[d]);
  }
}

template <typename T>
__device__ inline void StoreSharedRow(const float* s, int key_dim, T* row) {
  const int lane = threadIdx.x % kWarp;
  if constexpr (std::is_same_v<T, int8_t>) {
    unsigned largest = 0;
    for (int d = lane; d < key_dim; d += kWarp) {
      largest = max(largest, __float_as_uint(s[d]) & 0x7fffffffu);
    }
    const RowUnit unit(__uint_as_float(__reduce_max_sync(kAllLanes, largest)));
    const int scale_at = RowPitch<T>(key_dim) - 4;
    for (int d = lane; d < scale_at; d += kWarp) {
      row[d] = d < key_dim ? Quantised(s[d], unit) : 0;
    }
    if (lane == 0) *reinterpret_cast<float*>(row + scale_at) = unit.scale;
  } else {
    for (int d = lane; d < key_dim; d += kWarp) StoreState(row + d, s[d]);
  }
}

}  // namespace mneme::cuda::matrix_memory
