#include "models/mixers/rope_frequencies.h"

#include <cmath>
#include <cstddef>
#include <numbers>

#include "base/status_macros.h"

namespace mneme {
namespace {

double FrequencyOf(double theta, int pair, int dim) { return std::pow(theta, -2.0 * pair / dim); }

std::vector<double> ExactFrequencies(double theta, int dim) {
  std::vector<double> frequencies;
  for (int j = 0; j < dim / 2; ++j) frequencies.push_back(FrequencyOf(theta, j, dim));
  return frequencies;
}

// [2, numbers]: each as an f32 and what that leaves.
absl::StatusOr<TensorView> TakeDoubles(Weights& weights, const std::vector<double>& numbers) {
  std::vector<float> parts(2 * numbers.size());
  for (size_t j = 0; j < numbers.size(); ++j) {
    const auto high = static_cast<float>(numbers[j]);
    parts[j] = high;
    parts[numbers.size() + j] = static_cast<float>(numbers[j] - high);
  }
  MNEME_ASSIGN_OR_RETURN(TensorView taken, weights.Constant(parts));
  taken.shape = {2, static_cast<int64_t>(numbers.size())};
  return taken;
}

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
  return TakeDoubles(weights, ExactFrequencies(theta, dim));
}

absl::StatusOr<TensorView> TakeStoredFrequencies(Weights& weights, absl::string_view name,
                                                 double theta, int dim) {
  MNEME_RETURN_IF_ERROR(weights.Expect(name, RopeFrequencies(theta, dim)));
  MNEME_ASSIGN_OR_RETURN(const std::vector<float> stored,
                         weights.Values(name, {dim / 2}, WeightInit::kOnes));
  std::vector<double> frequencies = ExactFrequencies(theta, dim);
  for (size_t j = 0; j < stored.size(); ++j) {
    constexpr double kFewRoundings = 1e-6;  // of an f32, as libraries make frequencies
    const double off = std::abs(stored[j] - frequencies[j]);
    if (off <= kFewRoundings * frequencies[j]) frequencies[j] = stored[j];
  }
  return TakeDoubles(weights, frequencies);
}

}  // namespace mneme
