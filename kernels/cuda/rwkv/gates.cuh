// The gates of a key channel of RWKV-7, and of a value: kernels/ops/rwkv.h has the equations.
#pragma once

#include "kernels/cuda/common/device_utils.cuh"

namespace mneme::cuda::rwkv {

struct Gates {
  float log_decay, c, e, k;
};

// From the sum of (k * k_k)^2 over a head.
__device__ inline float KeyNorm(float squares, float eps, float least) {
  return fmaxf(sqrtf(squares + eps), least);
}

// `decay` and `rate` with their biases.
__device__ inline Gates GatesOf(float decay, float rate, float k, float k_k, float k_a,
                                float norm) {
  constexpr float kDecayRate = -0.60653065971263342f;  // -exp(-1/2)
  const float a = Sigmoid(rate), c = k * k_k / norm;
  return {kDecayRate * Sigmoid(decay), c, -a * c, k * fmaf(a - 1, k_a, 1.0f)};
}

// ValueResidual
__device__ inline float MixValue(float v, float first, float gate, float bias) {
  return fmaf(first - v, Sigmoid(gate + bias), v);
}

}  // namespace mneme::cuda::rwkv
