// Tensor-core products of 16-bit numbers summed in fp32, and asynchronous copies to shared memory;
// what compute_80 has.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/common/async_copy.cuh"
#include "kernels/cuda/common/device_utils.cuh"

namespace mneme::cuda {

// d += a b: a is 16 x 16, b 16 x 8. Lane l holds of
//   a: rows l/4 and l/4 + 8, columns 2(l%4) + {0, 1} and 8 more: a[0], a[1] rows, a[2], a[3] + 8
//   b: column l/4, rows 2(l%4) + {0, 1} and 8 more
//   d: rows l/4 (d[0], d[1]) and l/4 + 8, columns 2(l%4) + {0, 1}
__device__ inline void MultiplyAdd(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                   __nv_bfloat16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void MultiplyAdd(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                   __half) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8 x 8 matrices of 16-bit numbers; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void LoadMatrices(uint32_t (&m)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(shared));
}

// The same, each of them transposed.
__device__ inline void LoadTransposedMatrices(uint32_t (&m)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(shared));
}

__device__ inline uint32_t RoundPair(float a, float b, __nv_bfloat16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
  return reinterpret_cast<const uint32_t&>(pair);
}
__device__ inline uint32_t RoundPair(float a, float b, __half) {
  const __half2 pair = __floats2half2_rn(a, b);
  return reinterpret_cast<const uint32_t&>(pair);
}
template <typename T>
__device__ inline uint4 RoundEight(const float4& a, const float4& b) {
  return make_uint4(RoundPair(a.x, a.y, T()), RoundPair(a.z, a.w, T()), RoundPair(b.x, b.y, T()),
                    RoundPair(b.z, b.w, T()));
}

}  // namespace mneme::cuda
