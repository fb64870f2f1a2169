// How fast the pairs of a head turn: theta^(-2j / dim) for pair j of a head of `dim` channels.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/tensor_view.h"
#include "models/weights.h"

namespace mneme {

// Each rounded once.
std::vector<float> RopeFrequencies(double theta, int dim);

// The scaling that makes heads turn slower, for sequences longer than those of the first training,
// which had original_length = L tokens. With f the frequency of a pair, and n = f L / 2 pi its
// turns in L:
//   kLinear  f / factor
//   kLlama3  f                        where n > high_freq_factor
//            f / factor               where n < low_freq_factor
//            (1 - s) f / factor + s f between, s = (n - low) / (high - low)
struct RopeScaling {
  enum class Kind : uint8_t { kNone, kLinear, kLlama3 };
  Kind kind = Kind::kNone;
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;  // of kLlama3, as the next
  int original_length = 1;

  bool operator==(const RopeScaling&) const = default;
};

// Computed in f32 step by step, as transformers and flash-linear-attention do.
std::vector<float> RopeFrequenciesInF32(double theta, int dim, const RopeScaling& scaling = {});

// As RopeArgs::frequencies takes float64 numbers: [2, dim / 2].
absl::StatusOr<TensorView> TakeExactFrequencies(Weights& weights, double theta, int dim);

// The same where a checkpoint has them as a tensor [dim / 2], which has to be what theta makes:
// those that it rounds to an f32 or so are the network's, as they are; of those that are rounded
// more, for a file of 16-bit numbers, the exact ones.
absl::StatusOr<TensorView> TakeStoredFrequencies(Weights& weights, absl::string_view name,
                                                 double theta, int dim);

}  // namespace mneme
