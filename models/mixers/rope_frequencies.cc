#include "models/mixers/rope_frequencies.h"

#include <cmath>
#include <cstddef>
#include <numbers>

#include "base/status_macros.h"

namespace mneme {
namespace {

double FrequencyOf(double theta, int pair, int dim) { return std::pow(theta, -2.0 * pair / dim); }

float Scaled(float frequency, const RopeScaling& scaling) {
  const auto factor = static_cast<float>(scaling.factor);
  if (scaling.kind == RopeScaling::Kind::kNone) return frequency;
  const float slow = frequency / factor;
  if (scaling.kind == RopeScaling::Kind::kLinear) return slow;
  const auto low = static_cast<float>(scaling.low_freq_factor);
  const auto high = static_cast<float>(scaling.high_freq_factor);
  const auto length = static_cast<float>(scaling.original_length);
  const float turn = static_cast<float>(2 * std::numbers::pi) / frequency;  // in positions
  const float turns = length / turn;
  if (turns > high) return frequency;
  if (turns < low) return slow;
  const float share = (turns - low) / (high - low);
  return (1 - share) * frequency / factor + share * frequency;
}

}  // namespace

std::vector<float> RopeFrequencies(double theta, int dim) {
  std::vector<float> frequencies;
  for (int j = 0; j < dim / 2; ++j) {
    frequencies.push_back(static_cast<float>(FrequencyOf(theta, j, dim)));
  }
  return frequencies;
}

std::vector<float> RopeFrequenciesInF32(double theta, int dim, const RopeScaling& scaling) {
  std::vector<float> frequencies;
  for (int j = 0; j < dim; j += 2) {
    const float exponent = static_cast<float>(j) / static_cast<float>(dim);
    frequencies.push_back(Scaled(1.0f / std::pow(static_cast<float>(theta), exponent), scaling));
  }
  return frequencies;
}

absl::StatusOr<TensorView> TakeExactFrequencies(Weights& weights, double theta, int dim) {
  const int half = dim / 2;
  std::vector<float> parts(static_cast<size_t>(2 * half));
  for (int j = 0; j < half; ++j) {
    const double frequency = FrequencyOf(theta, j, dim);
    const auto high = static_cast<float>(frequency);
    parts[static_cast<size_t>(j)] = high;
    parts[static_cast<size_t>(half + j)] = static_cast<float>(frequency - high);
  }
  MNEME_ASSIGN_OR_RETURN(TensorView frequencies, weights.Constant(parts));
  frequencies.shape = {2, half};
  return frequencies;
}

}  // namespace mneme
