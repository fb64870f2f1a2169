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

// Feature i. A bf16 is the upper half of the float.
template <typename T, int kPiece>
__device__ inline float FeatureOf(const WeightPiece<T, kPiece>& piece, int i) {
  return ToFloat(piece.values[i]);
}
template <>
__device__ inline float FeatureOf(const WeightPiece<__nv_bfloat16, 8>& piece, int i) {
  const uint32_t pair = reinterpret_cast<const uint32_t*>(&piece)[i / 2];
  return __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
}

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

// Where feature k of n lies in shared memory. A lane reads a piece of eight as two vectors of four:
// they lie half a row apart, so that the lanes of a warp read consecutive vectors.
template <int kPiece>
__device__ inline int PlaceOf(int k, int n) {
  if constexpr (kPiece == 8) return (k / 8) * 4 + k % 4 + (k / 4 % 2) * (n / 2);
  return k;
}

// Features [k, k + kPiece) of the n at x, which lie as PlaceOf() says.
template <int kPiece>
__device__ inline void LoadActivationPiece(const float* x, int k, int n, float (&values)[kPiece]) {
  if constexpr (kPiece == 1) {
    values[0] = x[k];
  } else {
#pragma unroll
    for (int i = 0; i < kPiece; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(x + PlaceOf<kPiece>(k + i, n));
      values[i] = four.x;
      values[i + 1] = four.y;
      values[i + 2] = four.z;
      values[i + 3] = four.w;
    }
  }
}

// Some of a warp's weights in registers: kAhead pieces of each row, all on their way at once.
template <typename T, int kPiece, int kOutputs>
struct WeightRound {
  static constexpr int kAhead = kOutputs >= 4 ? 2 : 4;
  static constexpr int kStride = kWarp * kPiece;
  static constexpr int kFeatures = kAhead * kStride;
  WeightPiece<T, kPiece> pieces[kAhead][kOutputs];

  // Features from k0 on; k0 is the lane's.
  __device__ void Load(const T* const (&rows)[kOutputs], int k0, int n) {
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int k = k0 + a * kStride;
      if (k >= n) continue;
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) pieces[a][o] = LoadWeightPiece<T, kPiece>(rows[o] + k);
    }
  }
  // sums[o * kEntries + e] += the lane's share of rows[o] . x[e].
  template <int kEntries>
  __device__ void Add(const float* const (&x)[kEntries], int k0, int n,
                      float (&sums)[kOutputs * kEntries]) const {
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int k = k0 + a * kStride;
      if (k >= n) continue;
#pragma unroll
      for (int e = 0; e < kEntries; ++e) {
        float values[kPiece];
        LoadActivationPiece<kPiece>(x[e], k, n, values);
#pragma unroll
        for (int o = 0; o < kOutputs; ++o) {
#pragma unroll
          for (int i = 0; i < kPiece; ++i) {
            float& sum = sums[o * kEntries + e];
            sum = fmaf(FeatureOf(pieces[a][o], i), values[i], sum);
          }
        }
      }
    }
  }
};

// What a kernel can do for rows of weights before it may read anything else: the first round into
// registers, the rest into L2.
template <typename T, int kPiece, int kOutputs>
__device__ inline void StartRows(const T* const (&rows)[kOutputs], int n, int lane,
                                 WeightRound<T, kPiece, kOutputs>& first) {
  first.Load(rows, lane * kPiece, n);
  constexpr int kLine = 128 / sizeof(T);
  for (int k = first.kFeatures + lane * kLine; k < n; k += kWarp * kLine) {
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(rows[o] + k));
    }
  }
}

// sums[o * kEntries + e] += the lane's share of rows[o] . x[e], over n features; `round` holds the
// first ones.
template <typename T, int kPiece, int kEntries, int kOutputs>
__device__ inline void AddProducts(const T* const (&rows)[kOutputs],
                                   WeightRound<T, kPiece, kOutputs>& round,
                                   const float* const (&x)[kEntries], int n, int lane,
                                   float (&sums)[kOutputs * kEntries]) {
  round.Add(x, lane * kPiece, n, sums);
  for (int k0 = lane * kPiece + round.kFeatures; k0 < n; k0 += round.kFeatures) {
    round.Load(rows, k0, n);
    round.Add(x, k0, n, sums);
  }
}

}  // namespace mneme::cuda
