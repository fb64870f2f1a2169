// Reading and writing the matrices of the chunked gated delta rule, by pairs of elements, in any
// dtype of theirs.
#pragma once

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/state_row.cuh"

namespace mneme::cuda::matrix_memory::chunked {

template <typename State>
__device__ inline float2 LoadPair(const State* p);
template <>
__device__ inline float2 LoadPair(const float* p) {
  return *reinterpret_cast<const float2*>(p);
}
template <>
__device__ inline float2 LoadPair(const __half* p) {
  return __half22float2(*reinterpret_cast<const __half2*>(p));
}
template <>
__device__ inline float2 LoadPair(const int8_t* p) {
  const char2 pair = *reinterpret_cast<const char2*>(p);
  return {static_cast<float>(pair.x), static_cast<float>(pair.y)};
}
__device__ inline void StorePair(float* p, float x, float y) {
  *reinterpret_cast<float2*>(p) = {x, y};
}
__device__ inline void StorePair(__half* p, float x, float y) {
  // Saturates, as StoreState: an infinity would spoil a memory for good.
  constexpr float kLargest = 65504.0f;
  const auto fit = [](float z) { return z > kLargest ? kLargest : z < -kLargest ? -kLargest : z; };
  *reinterpret_cast<__half2*>(p) = __floats2half2_rn(fit(x), fit(y));
}

// A lane's part of two rows, times `inverse`, to kI8; the first begins at `row`.
template <int kSums>
__device__ inline void StoreInts(const float (&s)[kSums], const float (&inverse)[2],
                                 bool first_lane, int key_dim, int8_t* row, int pair) {
#pragma unroll
  for (int r = 0; r < 2; ++r, row += RowPitch<int8_t>(key_dim)) {
    float largest = 0;
#pragma unroll
    for (int i = 2 * r; i < kSums; i += 4) {
      // Unlike fmaxf, this keeps what is not a number.
      const float pair_largest = fabsf(s[i]) >= fabsf(s[i + 1]) ? fabsf(s[i]) : fabsf(s[i + 1]);
      largest = pair_largest <= largest ? largest : pair_largest;
    }
    for (int mask = 1; mask < 4; mask *= 2) {
      const float other = __shfl_xor_sync(kAllLanes, largest, mask);
      largest = other <= largest ? largest : other;
    }
    const RowUnit scaled(largest * inverse[r]);
#pragma unroll
    for (int i = 2 * r; i < kSums; i += 4) {
      const char2 both = {static_cast<signed char>(Quantised(s[i] * inverse[r], scaled)),
                          static_cast<signed char>(Quantised(s[i + 1] * inverse[r], scaled))};
      *reinterpret_cast<char2*>(row + pair + 2 * (i - 2 * r)) = both;
    }
    if (first_lane) *reinterpret_cast<float*>(row + (key_dim + 3) / 4 * 4) = scaled.scale;
  }
}

}  // namespace mneme::cuda::matrix_memory::chunked
