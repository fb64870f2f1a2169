// Small device functions that several kernels share.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cfloat>
#include <cstdint>

#include "kernels/tensor_view.h"

namespace mneme::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// Sum over the warp, in every lane; the order of additions is fixed.
__device__ inline float WarpSum(float x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}

// Leaves kLeft of 2 kLeft values of each lane, summed over it and one other lane.
template <int kLeft, int kCount>
__device__ inline void HalveSums(float (&values)[kCount], int lane) {
  constexpr int kOffset = kWarp * kLeft / kCount;
  const bool upper = (lane & kOffset) != 0;
#pragma unroll
  for (int i = 0; i < kLeft; ++i) {
    const float keep = upper ? values[i + kLeft] : values[i];
    const float give = upper ? values[i] : values[i + kLeft];
    values[i] = keep + __shfl_xor_sync(kAllLanes, give, kOffset);
  }
  if constexpr (kLeft > 1) HalveSums<kLeft / 2>(values, lane);
}

// values[i] summed over the warp, for the i with the lane's topmost log2(kCount) bits; each sum in
// the order of WarpSum. A sum is in kWarp / kCount lanes.
template <int kCount>
__device__ inline float WarpSums(float (&values)[kCount], int lane) {
  static_assert(kCount <= kWarp);
  if constexpr (kCount > 1) HalveSums<kCount / 2>(values, lane);
  float sum = values[0];
#pragma unroll
  for (int offset = kWarp / kCount / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, offset);
  }
  return sum;
}

// Sum over a block of `kThreads`, in every thread. `scratch` has kThreads / kWarp floats, and may
// be used again after the next __syncthreads().
template <int kThreads>
__device__ inline float BlockSum(float x, float* scratch) {
  constexpr int kWarps = kThreads / kWarp;
  x = WarpSum(x);
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = x;
  __syncthreads();
  x = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) x += scratch[warp];
  return x;
}

__device__ inline float ToFloat(float x) { return x; }
__device__ inline float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float ToFloat(__half x) { return __half2float(x); }

template <typename T>
__device__ inline T FromFloat(float x);
template <>
__device__ inline float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 FromFloat<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline __half FromFloat<__half>(float x) {
  return __float2half_rn(x);
}

// What instructions call an address in shared memory.
__device__ inline uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// StateView::as() for the device.
template <typename T>
__device__ inline T* MemoryAt(const StateView& view, int slot, int memory) {
  return reinterpret_cast<T*>(view.base + slot * view.slab_bytes + view.offset +
                              memory * view.memory_bytes);
}

// e^x, at most FLT_MAX: what is then multiplied by zero stays a number. NaN stays NaN.
__device__ inline float BoundedExp(float x) {
  const float y = expf(x);
  return y > FLT_MAX ? FLT_MAX : y;
}

// DeltaGates' log_decay, from the projection `a`; at least -FLT_MAX. Far below zero softplus(z) is
// e^z, and the product a single power, which may be a fair number where neither factor is.
__device__ inline float LogDecay(float a, float a_log, float dt_bias) {
  const float z = a + dt_bias;
  if (z < -17.0f) return -BoundedExp(a_log + z);
  const float rate = BoundedExp(a_log) * (z > 20.0f ? z : log1pf(expf(z)));
  return rate > FLT_MAX ? -FLT_MAX : -rate;
}

__device__ inline float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ inline float Silu(float x) { return x / (1.0f + expf(-x)); }
// To within a few units of the last place, without the branches of an exact division.
__device__ inline float FastSilu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

}  // namespace mneme::cuda
