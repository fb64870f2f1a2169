// How fast the pairs of a head turn: theta^(-2j / dim) for pair j of a head of `dim` channels.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "kernels/tensor_view.h"
#include "models/weights.h"

namespace mneme {

// Each rounded once.
std::vector<float> RopeFrequencies(double theta, int dim);

// Computed in f32 step by step, as transformers and flash-linear-attention do.
std::vector<float> RopeFrequenciesInF32(double theta, int dim);

// As RopeArgs::frequencies takes float64 numbers: [2, dim / 2].
absl::StatusOr<TensorView> TakeExactFrequencies(Weights& weights, double theta, int dim);

}  // namespace mneme
