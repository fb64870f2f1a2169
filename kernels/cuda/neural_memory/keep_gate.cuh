// KeepGate of one number.
#pragma once

#include "kernels/cuda/common/device_utils.cuh"

namespace mneme::cuda::neural_memory {

// `exponential`: by a_log and dt_bias of the head, which else have no meaning.
__device__ inline float KeepOf(float x, bool exponential, float a_log, float dt_bias) {
  if (!exponential) return Sigmoid(-x);
  return expf(LogDecay(x, a_log, dt_bias));
}

}  // namespace mneme::cuda::neural_memory
