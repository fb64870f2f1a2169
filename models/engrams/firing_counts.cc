#include "models/engrams/firing_counts.h"

#include <algorithm>
#include <bit>

namespace mneme {
namespace {

constexpr char kCounts[] = "engrams.counts", kFired[] = "engrams.fired";

}  // namespace

std::vector<std::string> FiringCounts::Fields(const StateLayout& layout) {
  const bool has_history =
      std::any_of(layout.fields().begin(), layout.fields().end(),
                  [](const StateField& field) { return field.name == kFired; });
  return {has_history ? kFired : kCounts};
}

FiringCounts FiringCounts::Read(const CanonicalState& state) {
  FiringCounts counts;
  if (const StateTensor* history = state.Find(kFired); history != nullptr) {
    counts.capacity_ = static_cast<size_t>(history->shape[0]);
    counts.words_ = static_cast<size_t>(history->shape[1]);
    counts.fired_ = history->Elements<uint32_t>();
    return counts;
  }
  const StateTensor& tensor = state.Get(kCounts);
  counts.capacity_ = static_cast<size_t>(tensor.shape[0]);
  counts.counts_ = tensor.Elements<uint16_t>();
  return counts;
}

int64_t FiringCounts::InBoth(size_t i, size_t j) const {
  int64_t count = 0;
  for (size_t word = 0; word < words_; ++word) {
    count += std::popcount(fired_[i * words_ + word] & fired_[j * words_ + word]);
  }
  return count;
}

}  // namespace mneme
