// How LinearBulk's warps store what they have summed up: each has 16 entries, as the sums of a
// wgmma are spread over its lanes.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/linear/batch.h"

namespace mneme::cuda::linear {

constexpr int kStoringWarps = 8;
constexpr int kOutputBytes = 16 * 128;  // of shared memory for a warp: 64 outputs of its entries

// Fours of sums: outputs 8 n + {0, 1} of entries lane / 4 and lane / 4 + 8, from 2 (lane % 4) on.
template <int kN>
__device__ inline void StoreFloats(const LinearProduct& p, int group, int begin, int end, int first,
                                   const float (&sums)[kN / 2]) {
  constexpr int kTogether = 8;  // old values on their way at a time
  const float* const bias = p.bias == nullptr ? nullptr : p.bias + int64_t{group} * p.out_features;
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int entry = begin + lane / 4 + 8 * half;
    if (entry >= end) continue;
    float* const row = p.y + int64_t{entry} * p.out_features;
#pragma unroll
    for (int batch = 0; batch < kN / 8; batch += kTogether) {
      float2 old[kTogether] = {};
#pragma unroll
      for (int n = 0; n < kTogether; ++n) {
        const int output = first + 8 * (batch + n) + lane % 4 * 2;
        if (p.accumulate && output < p.out_features) {
          old[n] = *reinterpret_cast<const float2*>(row + output);
        }
        if (bias != nullptr && output < p.out_features) {
          old[n] = {old[n].x + bias[output], old[n].y + bias[output + 1]};
        }
      }
#pragma unroll
      for (int n = 0; n < kTogether; ++n) {
        const int output = first + 8 * (batch + n) + lane % 4 * 2;
        const float* const sum = sums + 4 * (batch + n) + 2 * half;
        if (output < p.out_features) {
          *reinterpret_cast<float2*>(row + output) = {old[n].x + sum[0], old[n].y + sum[1]};
        }
      }
    }
  }
}

// bf16, whole lines at a time by way of shared memory. `output(i)`: what sum i stands for.
template <int kOutputs, typename Output>
__device__ inline void StoreRounded(const LinearProduct& p, int begin, int end, int first,
                                    unsigned char* room, const Output& output) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int block = 0; block < kOutputs / 64; ++block) {
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = lane / 4 + 8 * half, i = 4 * (8 * block + n) + 2 * half;
        *reinterpret_cast<uint32_t*>(room + row * 128 + (n ^ (row % 8)) * 16 + lane % 4 * 4) =
            RoundPair(output(i), output(i + 1), __nv_bfloat16());
      }
    }
    __syncwarp();
    const int piece = lane % 8, column = first + 64 * block + 8 * piece;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 4 * i + lane / 8;
      if (begin + row >= end || column >= p.out_features) continue;
      *reinterpret_cast<uint4*>(reinterpret_cast<__nv_bfloat16*>(p.y) +
                                int64_t{begin + row} * p.out_features + column) =
          *reinterpret_cast<const uint4*>(room + row * 128 + (piece ^ (row % 8)) * 16);
    }
  }
}

// Writes the entries from `begin` to `end` of a group, outputs from `first` on.
template <int kN>
__device__ inline void StoreOutputs(const LinearProduct& p, int group, int begin, int end,
                                    int first, const float (&sums)[kN / 2], unsigned char* room) {
  if (p.gated) {
    StoreRounded<kN / 2>(p, begin, end, first, room,
                         [&](int i) { return FastSilu(sums[i]) * sums[kN / 4 + i]; });
  } else if (p.rounds) {
    StoreRounded<kN>(p, begin, end, first, room, [&](int i) { return sums[i]; });
  } else {
    StoreFloats<kN>(p, group, begin, end, first, sums);
  }
}

}  // namespace mneme::cuda::linear
