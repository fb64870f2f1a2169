// What attention has read, on its way to memory: f32, or bf16 where it goes to a product.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/fours.cuh"
#include "kernels/cuda/common/mma.cuh"

namespace mneme::cuda {

constexpr int kLaneColumns = 8;

// Aligned to what is saved at once.
struct ReadOutput {
  void* data;
  bool rounds;

  __device__ void SaveEight(int64_t at, const float (&x)[kLaneColumns]) const {
    const float4 low = {x[0], x[1], x[2], x[3]}, high = {x[4], x[5], x[6], x[7]};
    if (rounds) {
      *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(data) + at) =
          RoundEight<__nv_bfloat16>(low, high);
    } else {
      SaveFour(static_cast<float*>(data) + at, low);
      SaveFour(static_cast<float*>(data) + at + 4, high);
    }
  }
  __device__ void SaveTwo(int64_t at, const float2& x) const {
    if (rounds) {
      *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(data) + at) =
          RoundPair(x.x, x.y, __nv_bfloat16());
    } else {
      *reinterpret_cast<float2*>(static_cast<float*>(data) + at) = x;
    }
  }
  __device__ void Save(int64_t at, float x) const {
    if (rounds) {
      static_cast<__nv_bfloat16*>(data)[at] = FromFloat<__nv_bfloat16>(x);
    } else {
      static_cast<float*>(data)[at] = x;
    }
  }
};

}  // namespace mneme::cuda
