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

}  // namespace mneme
