// Rows taken four elements at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/tensor_view.h"

namespace mneme::cuda {

// Four consecutive elements as floats, by one access.
__device__ inline float4 LoadFour(const float* p) { return *reinterpret_cast<const float4*>(p); }
template <typename T>
__device__ inline float4 LoadFour(const T* p) {
  union {
    uint2 bits;
    T values[4];
  } four;
  four.bits = *reinterpret_cast<const uint2*>(p);
  return {ToFloat(four.values[0]), ToFloat(four.values[1]), ToFloat(four.values[2]),
          ToFloat(four.values[3])};
}

__device__ inline void SaveFour(float* p, float4 x) { *reinterpret_cast<float4*>(p) = x; }
__device__ inline void SaveFour(__nv_bfloat16* p, float4 x) {
  reinterpret_cast<__nv_bfloat162*>(p)[0] = __floats2bfloat162_rn(x.x, x.y);
  reinterpret_cast<__nv_bfloat162*>(p)[1] = __floats2bfloat162_rn(x.z, x.w);
}

// Adds as many of four consecutive numbers as there are, `count` or four.
__device__ inline void AddSome(const float* from, int count, float4& to) {
  if (count > 0) to.x += from[0];
  if (count > 1) to.y += from[1];
  if (count > 2) to.z += from[2];
  if (count > 3) to.w += from[3];
}

// A kernel's rows are taken four elements at a time if all of them start at a 16-byte boundary.
template <typename... Tensors>
inline bool InFours(int64_t dim, const Tensors&... tensors) {
  return dim % 4 == 0 && AreAligned(tensors...);
}

// Threads for a row of `items` accesses.
inline int ThreadsFor(int64_t items) {
  return static_cast<int>(std::clamp<int64_t>((items + kWarp - 1) / kWarp * kWarp, kWarp, 256));
}

}  // namespace mneme::cuda
