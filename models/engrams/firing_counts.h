// How often engrams fired, however a state keeps that (EngramStore).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "models/state_codec.h"
#include "models/state_layout.h"

namespace mneme {

class FiringCounts {
 public:
  // The one field of `layout` that Read needs.
  static std::string Field(const StateLayout& layout);
  // Segments that a session can begin before counts stay what they are.
  static constexpr int64_t kMostSegments = 65535;

  FiringCounts() = default;  // without engrams
  static FiringCounts Read(const CanonicalState& state);

  // Segments for which the engrams in both slots fired; of one slot, for which that did.
  int64_t Together(size_t i, size_t j) const;
  // The same of one slot with each. Of a history it takes as long as there were others firing when
  // this one did, and not as long as that is.
  std::vector<uint16_t> TogetherWithAll(size_t i) const;
  // EngramStore::steps: of a history; 0: there is none, but counts.
  int steps() const { return static_cast<int>(words_ * kWordBits); }
  // Bit s % steps() of the engram in slot i, where a history is kept.
  bool fired(size_t i, int bit) const {
    return (fired_[i * words_ + static_cast<size_t>(bit) / kWordBits] >> (bit % kWordBits) & 1) > 0;
  }

 private:
  static constexpr int kWordBits = 32;

  size_t capacity_ = 0, words_ = 0;
  std::vector<uint16_t> counts_;  // [capacity, capacity]
  std::vector<uint32_t> fired_;   // or [capacity, words], and by bits the slots that have them
  std::vector<std::vector<uint32_t>> firing_;
};

}  // namespace mneme
