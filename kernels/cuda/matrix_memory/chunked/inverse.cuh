// The inverse of a unit lower triangular matrix of kChunk rows in shared memory, f32, and products
// with it, by the threads that prepare a chunk.
#pragma once

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/matrix_memory/chunked/mma.cuh"
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

// t, zero above the diagonal, to a tile in shared memory and its first `rows` rows to the image.
template <typename Element>
__device__ inline void RoundTriangle(const float* t, uint8_t* tile, uint8_t* image, int rows) {
  for (int i = threadIdx.x; i < kChunk * 8; i += kPrepareThreads) {
    const int row = i / 8, piece = i % 8;
    float x[8];
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const int column = 8 * piece + c;
      x[c] = column <= row ? t[row * kPitch + column] : 0.0f;
    }
    const uint4 packed = {PackPair<Element>(x[0], x[1]), PackPair<Element>(x[2], x[3]),
                          PackPair<Element>(x[4], x[5]), PackPair<Element>(x[6], x[7])};
    *reinterpret_cast<uint4*>(tile + TileOffset(row, piece)) = packed;
    if (row < rows) *reinterpret_cast<uint4*>(image + TileOffset(row, piece)) = packed;
  }
}

// The product of two tiles that are zero above the diagonal, of which a warp has 16 rows and 32
// columns. use(i, j, x, y) gets elements j and j + 1 of row i, zeros above the diagonal included.
template <typename Element, typename Use>
__device__ inline void MultiplyTriangles(uint32_t left_tile, uint32_t right_tile, const Use& use) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int block = warp % 4, first = 2 * (warp / 4);
  float sums[16] = {};
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    if (step > block) continue;
    uint32_t left[4];
    LoadLeft(left_tile, 16 * block, step, left);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      uint32_t right[4];
      LoadRightOfColumns(right_tile, step, 16 * (first + n), right);
      Mma<Element>(sums + 8 * n, left, right[0], right[1]);
      Mma<Element>(sums + 8 * n + 4, left, right[2], right[3]);
    }
  }
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      use(16 * block + lane / 4 + 8 * half, 16 * first + 8 * n + 2 * (lane % 4),
          sums[4 * n + 2 * half], sums[4 * n + 2 * half + 1]);
    }
  }
}

// Two adjacent elements of a row of a tile.
template <typename Element>
__device__ inline void StoreTilePair(uint8_t* tile, int i, int j, float x, float y) {
  *reinterpret_cast<uint32_t*>(tile + TileOffset(i, j / 8) + 2 * (j % 8)) = PackPair<Element>(x, y);
}

// P T to the first `rows` rows of the image.
template <typename Element>
__device__ inline void MultiplyTriangles(uint32_t p_tile, uint32_t t_tile, int rows,
                                         uint8_t* image) {
  MultiplyTriangles<Element>(p_tile, t_tile, [&](int i, int j, float x, float y) {
    if (i < rows) StoreTilePair<Element>(image, i, j, x, y);
  });
}

}  // namespace mneme::cuda::matrix_memory::chunked
