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

// Four at a time behind one branch: fewer instructions to fetch than a branch of each.
__device__ inline float4 Activated(Activation activation, const float4& x) {
  const auto all = [&x](Activation one) -> float4 {
    return {Activated(one, x.x), Activated(one, x.y), Activated(one, x.z), Activated(one, x.w)};
  };
  switch (activation) {
    case Activation::kSilu:
      return all(Activation::kSilu);
    case Activation::kSigmoid:
      return all(Activation::kSigmoid);
    case Activation::kRelu:
      return all(Activation::kRelu);
    case Activation::kEluPlusOne:
      return all(Activation::kEluPlusOne);
    case Activation::kTanh:
      return all(Activation::kTanh);
    case Activation::kSquaredRelu:
      return all(Activation::kSquaredRelu);
    case Activation::kGeluTanh:
      return all(Activation::kGeluTanh);
    case Activation::kGelu:
      return all(Activation::kGelu);
    default:
      return x;
  }
}

// An output gate is silu or sigmoid; both are a numerator over the same denominator.
__device__ inline float OutputGate(bool sigmoid, float x) {
  return (sigmoid ? 1.0f : x) / (1.0f + expf(-x));
}

}  // namespace mneme::cuda
