// How often engrams fired, however a state keeps that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "models/state_codec.h"

namespace mneme {

// Either counts of all pairs, "engrams.counts", or of each engram the segments for which it fired,
// "engrams.fired": a bit each, those of 32 segments a number.
class FiringCounts {
 public:
  // The fields of `layout` that Read needs.
  static std::vector<std::string> Fields(const StateLayout& layout);

  FiringCounts() = default;  // without engrams
  static FiringCounts Read(const CanonicalState& state);

  // Segments for which the engrams in both slots fired; of one slot, for which that did.
  int64_t Together(size_t i, size_t j) const {
    return words_ > 0 ? InBoth(i, j) : counts_[i * capacity_ + j];
  }

 private:
  int64_t InBoth(size_t i, size_t j) const;

  size_t capacity_ = 0, words_ = 0;
  std::vector<uint16_t> counts_;  // [capacity, capacity]
  std::vector<uint32_t> fired_;   // [capacity, words]
};

}  // namespace mneme
