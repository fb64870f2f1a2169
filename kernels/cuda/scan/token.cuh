// What one token does to the states of a channel, and what the kernels of the selective scan share.
// They all have the same bits: sums over states are of four slices, state n being of slice n % 4,
// which are added in pairs.
#pragma once

#include <cfloat>
#include <cstdint>

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/exponentials.cuh"
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

// log(1 + e^z) = max(z, 0) + log(1 + x), x = e^-|z|, which is 2 artanh(x / (2 + x)), by its series:
// the argument is at most 1/3. Past 20 it is z to within f32.
__device__ inline float Softplus(float z) {
  // e^-|z|, with what the product with log2(e) = high + low rounds away.
  constexpr float kHigh = -1.4426950f, kLow = -1.9259629e-8f, kLog2 = 0.69314718f;
  const float power = kHigh * fabsf(z);
  const float rest = fmaf(kLow, fabsf(z), fmaf(kHigh, fabsf(z), -power));
  const float whole = Exp2(power), x = fmaf(whole, kLog2 * rest, whole);
  const float s = __fdividef(x, 2.0f + x), squared = s * s;
  float sum = fmaf(squared, 1.0f / 15, 1.0f / 13);
  sum = fmaf(sum, squared, 1.0f / 11);
  sum = fmaf(sum, squared, 1.0f / 9);
  sum = fmaf(sum, squared, 1.0f / 7);
  sum = fmaf(sum, squared, 1.0f / 5);
  sum = fmaf(sum, squared, 1.0f / 3);
  sum = fmaf(sum, squared, 1.0f);
  return fmaf(2.0f * s, sum, fmaxf(z, 0.0f));
}
// A rate in units of log 2, still finite: a step of zero times infinity would be no number.
__device__ inline float Rate(float a) { return fmaxf(a * 1.4426950408889634f, -FLT_MAX); }

// The state after a token with this step and step * u.
__device__ inline float NextState(float h, float rate, float step, float input, float b) {
  return fmaf(Exp2(step * rate), h, input * b);
}

template <typename Y>
__device__ inline Y Output(float read, float skip, float u, float gate) {
  return FromFloat<Y>(fmaf(skip, u, read) * __fdividef(gate, 1.0f + expf(-gate)));
}

}  // namespace mneme::cuda::scan
