// Products of few rows, as device functions: a warp reads rows of weights once, for all entries,
// its lanes along in_features. In fp32 throughout; the sum of an output has one order.
#pragma once

#include <cstdint>

#include "kernels/cuda/device_utils.cuh"

namespace mneme::cuda {

// kPiece consecutive features: 16 bytes of weights, or a single one.
template <typename T, int kPiece>
struct alignas(sizeof(T) * kPiece) WeightPiece {
  T values[kPiece];
};

// Weights are used once a step and would only push other things out of L1.
template <typename T, int kPiece>
__device__ inline WeightPiece<T, kPiece> LoadWeightPiece(const T* from) {
  WeightPiece<T, kPiece> piece;
  if constexpr (sizeof(piece) == 16) {
    uint4& raw = reinterpret_cast<uint4&>(piece);
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
                 : "l"(from));
  } else {
    static_assert(kPiece == 1);
    piece.values[0] = *from;
  }
  return piece;
}

// Brings a row of weights into L2, a line to a lane.
template <typename T>
__device__ inline void PrefetchRow(const T* row, int n, int lane) {
  constexpr int kLine = 128 / sizeof(T);
  for (int k = lane * kLine; k < n; k += kWarp * kLine) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(row + k));
  }
}

template <int kPiece>
__device__ inline void LoadActivationPiece(const float* from, float (&x)[kPiece]) {
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

// sums[o * kEntries + e] += the lane's share of rows[o] . x[e], over n features.
template <typename T, int kPiece, int kEntries, int kOutputs>
__device__ inline void AddProducts(const T* const (&rows)[kOutputs],
                                   const float* const (&x)[kEntries], int n, int lane,
                                   float (&sums)[kOutputs * kEntries]) {
  // Loads under way at once, per lane; enough of them over all warps hide the memory's latency.
  constexpr int kAhead = kOutputs >= 4 ? 2 : 4;
  constexpr int kStride = kWarp * kPiece;
  for (int k0 = lane * kPiece; k0 < n; k0 += kAhead * kStride) {
    WeightPiece<T, kPiece> w[kAhead][kOutputs];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int k = k0 + a * kStride;
      if (k >= n) continue;
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) w[a][o] = LoadWeightPiece<T, kPiece>(rows[o] + k);
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int k = k0 + a * kStride;
      if (k >= n) continue;
#pragma unroll
      for (int e = 0; e < kEntries; ++e) {
        float values[kPiece];
        LoadActivationPiece<kPiece>(x[e] + k, values);
#pragma unroll
        for (int o = 0; o < kOutputs; ++o) {
#pragma unroll
          for (int i = 0; i < kPiece; ++i) {
            float& sum = sums[o * kEntries + e];
            sum = fmaf(ToFloat(w[a][o].values[i]), values[i], sum);
          }
        }
      }
    }
  }
}

}  // namespace mneme::cuda
