// Activations of one number.
#pragma once

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/ops/dense.h"

namespace mneme::cuda {

__device__ inline float Activated(Activation activation, float x) {
  switch (activation) {
    case Activation::kSilu:
      return Silu(x);
    case Activation::kSigmoid:
      return Sigmoid(x);
    case Activation::kRelu:
      return fmaxf(x, 0.0f);
    case Activation::kEluPlusOne:
      return x > 0 ? x + 1 : expf(x);
    case Activation::kTanh:
      return tanhf(x);
    case Activation::kSquaredRelu:
      return fmaxf(x, 0.0f) * fmaxf(x, 0.0f);
    case Activation::kGeluTanh: {
      constexpr float kFirst = kGeluFirst, kThird = kGeluThird;
      return x / (1.0f + expf(-x * (kFirst + kThird * x * x)));
    }
    case Activation::kGelu:
      return x * normcdff(x);
    default:
      return x;
  }
}

// An output gate is silu or sigmoid; both are a numerator over the same denominator.
__device__ inline float OutputGate(bool sigmoid, float x) {
  return (sigmoid ? 1.0f : x) / (1.0f + expf(-x));
}

}  // namespace mneme::cuda
