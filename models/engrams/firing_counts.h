// How often engrams fired, however a state keeps that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "models/state_codec.h"

namespace mneme {

class FiringCounts {
 public:
  // The tensors that Read needs.
  static std::vector<std::string> Fields() { return {"engrams.counts"}; }
  // Segments that a session can begin before firings are lost.
  static constexpr int64_t kMostSegments = 65535;

  FiringCounts() = default;  // without engrams
  static FiringCounts Read(const CanonicalState& state);

  // Segments for which the engrams in both slots fired; of one slot, for which that did.
  int64_t Together(size_t i, size_t j) const { return counts_[i * capacity_ + j]; }

 private:
  size_t capacity_ = 0;
  std::vector<uint16_t> counts_;  // [capacity, capacity]
};

}  // namespace mneme
