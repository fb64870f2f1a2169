// Exponentials, of which weights of attention and decays are made.
#pragma once

#include "kernels/cuda/common/device_utils.cuh"

namespace mneme::cuda {

// 2^x for x <= 0, zero for what f32 has no normal number for.
__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The largest of a warp's numbers, in all lanes.
__device__ inline float WarpMax(float x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, offset));
  }
  return x;
}

}  // namespace mneme::cuda
