// Weights as products of few rows read them: a warp's lanes along in_features, 16 bytes at a time.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/common/device_utils.cuh"

namespace mneme::cuda::linear {

// kPiece consecutive features: 16 bytes of weights, or a single one.
template <typename T, int kPiece>
struct Piece {
  uint4 raw;
};
template <typename T>
struct Piece<T, 1> {
  T raw;
};

// Weights are used once a step and would only push other things out of L1.
template <typename T, int kPiece>
__device__ inline Piece<T, kPiece> LoadWeights(const T* from) {
  Piece<T, kPiece> piece;
  if constexpr (kPiece == 1) {
    piece.raw = *from;
  } else {
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(piece.raw.x), "=r"(piece.raw.y), "=r"(piece.raw.z), "=r"(piece.raw.w)
                 : "l"(from));
  }
  return piece;
}

__device__ inline void UnpackPair(uint32_t pair, __nv_bfloat16, float* values) {
  values[0] = __uint_as_float(pair << 16);
  values[1] = __uint_as_float(pair & 0xffff0000u);
}
__device__ inline void UnpackPair(uint32_t pair, __half, float* values) {
  const float2 both = __half22float2(reinterpret_cast<const __half2&>(pair));
  values[0] = both.x;
  values[1] = both.y;
}

template <typename T, int kPiece>
__device__ inline void Unpack(const Piece<T, kPiece>& piece, float (&values)[kPiece]) {
  if constexpr (kPiece == 1) {
    values[0] = ToFloat(piece.raw);
  } else if constexpr (kPiece == 4) {
    values[0] = __uint_as_float(piece.raw.x);
    values[1] = __uint_as_float(piece.raw.y);
    values[2] = __uint_as_float(piece.raw.z);
    values[3] = __uint_as_float(piece.raw.w);
  } else {
    UnpackPair(piece.raw.x, T(), values);
    UnpackPair(piece.raw.y, T(), values + 2);
    UnpackPair(piece.raw.z, T(), values + 4);
    UnpackPair(piece.raw.w, T(), values + 6);
  }
}

template <int kPiece>
__device__ inline void LoadActivations(const float* from, float (&x)[kPiece]) {
  if constexpr (kPiece == 1) {
    x[0] = *from;
  } else {
#pragma unroll
    for (int i = 0; i < kPiece; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + i);
      x[i] = four.x;
      x[i + 1] = four.y;
      x[i + 2] = four.z;
      x[i + 3] = four.w;
    }
  }
}

}  // namespace mneme::cuda::linear
