#pragma once

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/ops/neural_memory.h"

namespace mneme::cuda::neural_memory {

// An activation of a memory's network, and its derivative.
__device__ inline float Activate(MemoryNetwork::Activation activation, float a, float* slope) {
  switch (activation) {
    case MemoryNetwork::Activation::kSilu: {
      const float s = Sigmoid(a);
      *slope = s * (1 + a * (1 - s));
      return a * s;
    }
    case MemoryNetwork::Activation::kGelu: {
      const float phi = 0.5f * (1 + erff(a * 0.70710678f));
      *slope = phi + a * 0.39894228f * expf(-0.5f * a * a);
      return a * phi;
    }
    default: {
      constexpr float c = 0.79788456f;
      const float t = tanhf(c * (a + 0.044715f * a * a * a));
      *slope = 0.5f * (1 + t) + 0.5f * a * (1 - t * t) * c * (1 + 3 * 0.044715f * a * a);
      return 0.5f * a * (1 + t);
    }
  }
}

}  // namespace mneme::cuda::neural_memory
