#include "models/engrams/engram_graph.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/log.h"

namespace mneme {
namespace {

double NormOf(const double* vector, size_t dim) {
  return std::sqrt(std::inner_product(vector, vector + dim, vector, 0.0));
}

}  // namespace

std::vector<std::string> EngramGraph::Fields(const StateLayout& layout, const Parts& parts) {
  std::vector<std::string> fields = {"engrams.types", "engrams.births",   "engrams.lifespans",
                                     "engrams.gains", "engrams.recalled", "engrams.facts"};
  if (parts.vectors) fields.push_back("engrams.vectors");
  if (parts.counts) fields.push_back(FiringCounts::Field(layout));
  return fields;
}

EngramGraph EngramGraph::Read(const CanonicalState& state, const EngramSegments& segments,
                              const Parts& parts) {
  const auto types = state.Get("engrams.types").Elements<uint8_t>();
  const auto births = state.Get("engrams.births").Elements<uint32_t>();
  const std::vector<double> lifespans = state.Get("engrams.lifespans").Numbers();
  const std::vector<double> gains = state.Get("engrams.gains").Numbers();
  const std::vector<double> vectors =
      parts.vectors ? state.Get("engrams.vectors").Numbers() : std::vector<double>();
  const size_t dim = types.empty() ? 0 : vectors.size() / types.size();

  EngramGraph graph;
  graph.position_ = state.tokens;
  graph.segments_ = segments;
  graph.capacity_ = static_cast<int>(types.size());
  graph.facts_ = state.Get("engrams.facts").Elements<int32_t>();
  if (parts.counts) graph.counts_ = FiringCounts::Read(state);
  for (size_t slot = 0; slot < types.size(); ++slot) {
    if (types[slot] == 0) continue;
    graph.engrams_.push_back({.birth = births[slot],
                              .type = static_cast<EngramType>(types[slot]),
                              .slot = slot,
                              .lifespan = lifespans[slot],
                              .last_gain = gains[slot],
                              .norm = dim > 0 ? NormOf(vectors.data() + slot * dim, dim) : 0,
                              .firings = parts.counts ? graph.counts_.Together(slot, slot) : 0});
  }
  std::sort(graph.engrams_.begin(), graph.engrams_.end(),
            [](const GraphEngram& a, const GraphEngram& b) { return a.birth < b.birth; });
  std::vector<size_t> place(types.size());  // of a slot's engram
  for (size_t i = 0; i < graph.engrams_.size(); ++i) place[graph.engrams_[i].slot] = i;
  const auto recalled = state.Get("engrams.recalled").Elements<int32_t>();
  for (int32_t n = 0; n < graph.fact(kEngramsRecalled); ++n) {
    const auto slot = static_cast<size_t>(recalled[static_cast<size_t>(n)]);
    CHECK(types[slot] != 0) << "slot " << slot << " is recalled and free";
    graph.engrams_[place[slot]].recalled = true;
    graph.recalled_.push_back(place[slot]);
  }
  return graph;
}

std::vector<int64_t> EngramGraph::Together(size_t i) const {
  const std::vector<uint16_t> with = counts_.TogetherWithAll(engrams_[i].slot);
  std::vector<int64_t> together;
  together.reserve(engrams_.size());
  for (const GraphEngram& engram : engrams_) together.push_back(with[engram.slot]);
  return together;
}

double EngramGraph::Weight(size_t i, int64_t together) const {
  const int64_t own = engrams_[i].firings;
  return own == 0 ? 0 : static_cast<double>(together) / static_cast<double>(own);
}

}  // namespace mneme
