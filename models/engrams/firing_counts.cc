#include "models/engrams/firing_counts.h"

#include <bit>

namespace mneme {
namespace {

constexpr char kCounts[] = "engrams.counts", kFired[] = "engrams.fired";

}  // namespace

std::string FiringCounts::Field(const StateLayout& layout) {
  for (const StateField& field : layout.fields()) {
    if (field.name == kFired) return kFired;
  }
  return kCounts;
}

FiringCounts FiringCounts::Read(const CanonicalState& state) {
  FiringCounts counts;
  if (const StateTensor* fired = state.Find(kFired); fired != nullptr) {
    counts.capacity_ = static_cast<size_t>(fired->shape[0]);
    counts.words_ = static_cast<size_t>(fired->shape[1]);
    counts.fired_ = fired->Elements<uint32_t>();
    counts.firing_.resize(counts.words_ * kWordBits);
    for (size_t i = 0; i < counts.fired_.size(); ++i) {
      for (uint32_t bits = counts.fired_[i]; bits != 0; bits &= bits - 1) {
        const size_t bit =
            i % counts.words_ * kWordBits + static_cast<size_t>(std::countr_zero(bits));
        counts.firing_[bit].push_back(static_cast<uint32_t>(i / counts.words_));
      }
    }
    return counts;
  }
  const StateTensor& tensor = state.Get(kCounts);
  counts.capacity_ = static_cast<size_t>(tensor.shape[0]);
  counts.counts_ = tensor.Elements<uint16_t>();
  return counts;
}

int64_t FiringCounts::Together(size_t i, size_t j) const {
  if (words_ == 0) return counts_[i * capacity_ + j];
  int64_t count = 0;
  for (size_t w = 0; w < words_; ++w) {
    count += std::popcount(fired_[i * words_ + w] & fired_[j * words_ + w]);
  }
  return count;
}

std::vector<uint16_t> FiringCounts::TogetherWithAll(size_t i) const {
  if (words_ == 0) {
    const auto row = counts_.begin() + static_cast<int64_t>(i * capacity_);
    return {row, row + static_cast<int64_t>(capacity_)};
  }
  std::vector<uint16_t> together(capacity_);
  for (int bit = 0; bit < steps(); ++bit) {
    if (!fired(i, bit)) continue;
    for (const uint32_t j : firing_[static_cast<size_t>(bit)]) ++together[j];
  }
  return together;
}

}  // namespace mneme
