#include "engine/memory_use.h"

#include <algorithm>

namespace mneme {

void MemoryUseTally::Leave(std::span<const RecalledEngram> before) {
  for (const RecalledEngram& engram : before) before_[engram.birth] = engram.weight;
}

void MemoryUseTally::Add(std::span<const RecalledEngram> recalled) {
  for (const RecalledEngram& engram : recalled) {
    const auto it = before_.find(engram.birth);
    const double weight = engram.weight - (it == before_.end() ? 0 : it->second);
    if (!(weight > 0)) continue;
    Use& use = uses_[{engram.segment, engram.long_term}];
    use.births.insert(engram.birth);
    use.weight += weight;
  }
  before_.clear();
}

MemoryUse MemoryUseTally::Result(int segment_tokens, int64_t evictions) const {
  MemoryUse result{.evictions = evictions};
  double total = 0;
  for (const auto& [source, use] : uses_) total += use.weight;
  for (const auto& [source, use] : uses_) {
    const int64_t first = source.segment * segment_tokens;
    result.sources.push_back({.segment = source.segment,
                              .first_token = first,
                              .end_token = first + segment_tokens,
                              .long_term = source.long_term,
                              .engrams = static_cast<int>(use.births.size()),
                              .weight = use.weight / total});
  }
  std::stable_sort(
      result.sources.begin(), result.sources.end(),
      [](const MemoryUse::Source& a, const MemoryUse::Source& b) { return a.weight > b.weight; });
  return result;
}

}  // namespace mneme
