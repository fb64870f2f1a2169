// Whether what is said to be a session's engrams can be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "models/mixers/engram_memory.h"
#include "models/state_codec.h"

namespace mneme {

// Count_ij of the engrams in slots i and j of a state, however its store keeps them.
class EngramCounts {
 public:
  explicit EngramCounts(const CanonicalState& state);

  int operator()(size_t i, size_t j) const;
  // EngramStore::steps.
  int steps() const { return static_cast<int>(words_ * kWordBits); }
  // Of a history: bit s % steps().
  bool fired(size_t i, int bit) const {
    return (fired_[i * words_ + static_cast<size_t>(bit) / kWordBits] >> (bit % kWordBits) & 1) > 0;
  }

 private:
  static constexpr int kWordBits = 32;

  size_t capacity_ = 0, words_ = 0;
  std::vector<uint16_t> counts_;  // [capacity, capacity]
  std::vector<uint32_t> fired_;   // or [capacity, words]
};

// The births of the engrams that a state's segment recalled, oldest first.
std::vector<uint32_t> RecalledBirths(const CanonicalState& state);

// Of a state whose tensors are of the right dtypes and shapes: kernels go where it says.
// INVALID_ARGUMENT names the tensor, what is wrong with it, and what was expected.
absl::Status CheckEngramState(const CanonicalState& state, const EngramConfig& config);

}  // namespace mneme
