// The inverse of a unit lower triangular matrix of kChunk rows in shared memory, f32, by the
// threads that prepare a chunk.
#pragma once

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/matrix_memory/chunked/plan.h"

namespace mneme::cuda::matrix_memory::chunked {

constexpr int kPrepareThreads = 256;
constexpr int kPitch = kChunk + 4;  // of the matrices
constexpr int kFactorFloats = 32 * 36;

// Waits for the threads that compute.
__device__ inline void SynchronizePreparing() {
  asm volatile("bar.sync 1, %0;" ::"n"(kPrepareThreads) : "memory");
}

// z = sign x y, all n x n blocks of wider matrices; a thread does kOutputs of a row.
template <int n, typename Vector>
__device__ inline void MultiplyBlocks(float sign, const float* x, int x_pitch, const float* y,
                                      int y_pitch, float* z, int z_pitch, int thread) {
  constexpr int kOutputs = sizeof(Vector) / sizeof(float);
  const int row = thread / (n / kOutputs), column = thread % (n / kOutputs) * kOutputs;
  float sums[kOutputs] = {};
#pragma unroll
  for (int l = 0; l < n; l += 4) {
    const float4 left = *reinterpret_cast<const float4*>(x + row * x_pitch + l);
    const float lefts[4] = {left.x, left.y, left.z, left.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float right[kOutputs];
      *reinterpret_cast<Vector*>(right) =
          *reinterpret_cast<const Vector*>(y + (l + i) * y_pitch + column);
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) sums[o] += lefts[i] * right[o];
    }
  }
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) sums[o] *= sign;
  *reinterpret_cast<Vector*>(z + row * z_pitch + column) = *reinterpret_cast<Vector*>(sums);
}

// One warp: the inverse of a block of 16 on the diagonal, a column a lane, by substitution.
__device__ inline void InvertBlock(const float* a, float* t) {
  const int lane = threadIdx.x % kWarp;
  if (lane >= 16) return;
  float x[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) x[i] = i == lane ? 1.0f : 0.0f;
#pragma unroll
  for (int l = 0; l < 16; l += 4) {
#pragma unroll
    for (int i = l + 1; i < 16; ++i) {
      const float4 row = *reinterpret_cast<const float4*>(a + i * kPitch + l);
      x[i] -= row.x * x[l];
      if (i > l + 1) x[i] -= row.y * x[l + 1];
      if (i > l + 2) x[i] -= row.z * x[l + 2];
      if (i > l + 3) x[i] -= row.w * x[l + 3];
    }
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) t[i * kPitch + lane] = x[i];
}

// t = (I + A)^-1, blocks on and below the diagonal, those of 16 on it being given. From
// [X 0; Y Z]^-1 = [X^-1 0; -Z^-1 Y X^-1  Z^-1], first for blocks of 16, then of 32.
__device__ inline void JoinInverses(const float* a, float* t, float* factor) {
  const int thread = threadIdx.x;
  {
    const int half = thread / 128, own = thread % 128;
    const float* low = a + 32 * half * (kPitch + 1) + 16 * kPitch;
    float* corner = t + 32 * half * (kPitch + 1);
    float* part = factor + half * 16 * 20;
    MultiplyBlocks<16, float2>(1, low, kPitch, corner, kPitch, part, 20, own);
    SynchronizePreparing();
    MultiplyBlocks<16, float2>(-1, corner + 16 * (kPitch + 1), kPitch, part, 20,
                               corner + 16 * kPitch, kPitch, own);
    // The blocks above the diagonal are read below.
    for (int i = own; i < 256; i += 128) corner[i / 16 * kPitch + 16 + i % 16] = 0;
  }
  SynchronizePreparing();
  MultiplyBlocks<32, float4>(1, a + 32 * kPitch, kPitch, t, kPitch, factor, 36, thread);
  SynchronizePreparing();
  MultiplyBlocks<32, float4>(-1, t + 32 * (kPitch + 1), kPitch, factor, 36, t + 32 * kPitch, kPitch,
                             thread);
  SynchronizePreparing();
}

}  // namespace mneme::cuda::matrix_memory::chunked
