// Decays of a token's keys or slots: DecayGates of one number.
#pragma once

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/ops/matrix_memory.h"

namespace mneme::cuda::matrix_memory {

// DecayGatesArgs, but for its rows and outputs.
struct GateRule {
  const float *lower, *a_log, *dt_bias;
  int dim;  // elements of a head
  DecayGate gate;
  float normalizer, least, lower_bound;
};
inline GateRule GateRuleOf(const DecayGatesArgs& args) {
  return {.lower = args.lower.as<const float>(),
          .a_log = args.a_log.as<const float>(),
          .dt_bias = args.dt_bias.as<const float>(),
          .dim = static_cast<int>(args.x.shape[2]),
          .gate = args.gate,
          .normalizer = args.normalizer,
          .least = args.least,
          .lower_bound = args.lower_bound};
}

struct Gate {
  float log_decay, complement;
};

__device__ inline float LogSigmoid(float x) { return fminf(x, 0.0f) - log1pf(expf(-fabsf(x))); }

// What element i of an entry is gated with: weights, which may be read ahead of x.
struct GateWeights {
  float lower, a_log, dt_bias;

  __device__ GateWeights() = default;
  __device__ GateWeights(const GateRule& p, int i)
      : lower(p.lower == nullptr ? 0.0f : p.lower[i]),
        a_log(p.a_log == nullptr ? 0.0f : p.a_log[i / p.dim]),
        dt_bias(p.dt_bias == nullptr ? 0.0f : p.dt_bias[i]) {}
};

__device__ inline Gate GateOf(const GateRule& p, const GateWeights& weights, float x) {
  float g = 0;
  switch (p.gate) {
    case DecayGate::kLogSigmoid:
      g = fmaxf(LogSigmoid(x) / p.normalizer, p.least);
      break;
    case DecayGate::kForget: {
      const float lower = weights.lower;
      const float complement = (1.0f - lower) * Sigmoid(-x);
      if (lower == 0.0f) {
        g = LogSigmoid(x);
      } else if (complement < 0.5f) {  // 1 - complement would round away what the log is of
        g = log1pf(-complement);
      } else {
        g = logf(lower + (1.0f - lower) * Sigmoid(x));
      }
      return {fmaxf(g, kLeastLogDecay), complement};
    }
    case DecayGate::kSoftplus:
      g = LogDecay(x, weights.a_log, weights.dt_bias);
      break;
    case DecayGate::kBounded:
      g = p.lower_bound * Sigmoid(BoundedExp(weights.a_log) * (x + weights.dt_bias));
      break;
    case DecayGate::kExponential:
      g = fmaxf(-expf(x), kLeastLogDecay);
      break;
  }
  return {g, -expm1f(g)};
}

}  // namespace mneme::cuda::matrix_memory
