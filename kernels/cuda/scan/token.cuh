// What one token does to the states of a channel, and what the kernels of the selective scan share.
// They all have the same bits: sums over states are of four slices, state n being of slice n % 4,
// which are added in pairs.
#pragma once

#include <cfloat>
#include <cstdint>

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/segments.cuh"

namespace mneme::cuda::scan {

constexpr int kThreads = 128;
constexpr int kSlices = 4;

struct ScanParams {
  const float *u, *dt, *b, *c, *a, *dt_bias, *skip, *gate;
  SegmentArrays segments;
  StateView state;
  void* y;
  int channels, states, tiles;
};

__device__ inline float Softplus(float z) { return z > 20.0f ? z : log1pf(expf(z)); }

// 2^x for x <= 0, zero for what f32 has no normal number for.
__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// A rate in units of log 2, still finite: a step of zero times infinity would be no number.
__device__ inline float Rate(float a) { return fmaxf(a * 1.4426950408889634f, -FLT_MAX); }

// The state after a token with this step and step * u.
__device__ inline float NextState(float h, float rate, float step, float input, float b) {
  return fmaf(Exp2(step * rate), h, input * b);
}

template <typename Y>
__device__ inline Y Output(float read, float skip, float u, float gate) {
  return FromFloat<Y>(fmaf(skip, u, read) * Silu(gate));
}

}  // namespace mneme::cuda::scan
