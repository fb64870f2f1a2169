// Rows of matrix memories as kernels/state_row.h describes them, for the device.
#pragma once

#include <cuda_fp16.h>

#include <cfloat>
#include <cstdint>
#include <type_traits>

namespace mneme::cuda {

// StateRowPitch().
template <typename T>
__host__ __device__ constexpr int RowPitch(int key_dim) {
  return std::is_same_v<T, int8_t> ? (key_dim + 3) / 4 * 4 + 4 : key_dim;
}

// What the elements of the row at `row` are to be multiplied by.
template <typename T>
__device__ inline float RowScale(const T* row, int key_dim) {
  if constexpr (std::is_same_v<T, int8_t>) {
    return *reinterpret_cast<const float*>(row + (key_dim + 3) / 4 * 4);
  } else {
    return 1.0f;
  }
}

// Scale and inverse of a row that is about to be stored. A row that is all but zero becomes zero:
// the inverse has to be finite.
struct RowUnit {
  float scale, inverse;
  __device__ explicit RowUnit(float largest)
      : scale(largest < 1e-30f ? 0.0f : fminf(largest, FLT_MAX) * (1.0f / 127)),
        inverse(largest < 1e-30f ? 0.0f : 127 / largest) {
    if (largest != largest) scale = largest;  // what is broken stays so
  }
};
__device__ inline int8_t Quantised(float x, RowUnit unit) {
  return static_cast<int8_t>(max(-127, min(127, __float2int_rn(x * unit.inverse))));
}

// Four elements, less their scale; conversions of integers are slow.
__device__ inline void UnpackInts(uint32_t packed, float* x) {
  const uint32_t biased = packed ^ 0x80808080u;
  constexpr float kBias = 8388608.0f + 128;
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    x[i] = __uint_as_float(__byte_perm(biased, 0x4b000000u, 0x7440 | i)) - kBias;
  }
}

}  // namespace mneme::cuda
