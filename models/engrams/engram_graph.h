// A session's engrams, and how often they fired together, as its canonical state has them: oldest
// first, wherever they lie, and on any device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops/engrams.h"
#include "models/engrams/firing_counts.h"
#include "models/state_codec.h"

namespace mneme {

// How a model makes engrams.
struct EngramSegments {
  int tokens = 1;   // of a segment
  int working = 1;  // engrams that are made of one
  // Segments that a session can have before firings are lost: as many as a count of 16 bits can be.
  int64_t counted = UINT16_MAX;
};

struct GraphEngram {
  uint32_t birth = 0;  // segment * working + index
  EngramType type = EngramType::kFree;
  size_t slot = 0;
  double lifespan = 0;
  double last_gain = 0;   // lifespan that it gained at the last commit at which it was recalled
  double norm = 0;        // of its vector; 0 in a graph without vectors
  int64_t firings = 0;    // segments for which it fired; 0 in a graph without counts
  bool recalled = false;  // the open segment's tokens attend to it
};

class EngramGraph {
 public:
  // What is read besides types, births, lifespans, gains and what was recalled: the larger tensors.
  struct Parts {
    bool vectors = false;
    bool counts = false;
  };
  // The fields of `layout` that Read takes then.
  static std::vector<std::string> Fields(const StateLayout& layout, const Parts& parts);
  // `state`: one that a session can have, with these tensors.
  static EngramGraph Read(const CanonicalState& state, const EngramSegments& segments,
                          const Parts& parts);

  int64_t position() const { return position_; }  // tokens that were fed
  // The one that is open, from 0 on: a segment is, until a token of the next one is fed.
  int64_t segment() const { return position_ > 0 ? (position_ - 1) / segments_.tokens : 0; }
  const EngramSegments& segments() const { return segments_; }
  int capacity() const { return capacity_; }

  const std::vector<GraphEngram>& engrams() const { return engrams_; }
  const std::vector<size_t>& recalled() const { return recalled_; }  // of them, oldest first
  int32_t fact(EngramFact fact) const { return facts_[fact]; }
  // The segment that it was made of.
  int64_t source(const GraphEngram& engram) const { return engram.birth / segments_.working; }
  // Segments since its birth; 0 of working ones, whether or not any are left.
  int64_t age(const GraphEngram& engram) const { return segment() - 1 - source(engram); }
  // With Parts::counts. Count_ij of engram i and of each j, indices into `engrams`: segments for
  // which both fired.
  std::vector<int64_t> Together(size_t i) const;
  // E_ij = Count_ij / Count_ii: how likely j is recalled where i is.
  double Weight(size_t i, int64_t together) const;
  // Whether firings were lost.
  bool history_wrapped() const { return segment() > segments_.counted; }

 private:
  int64_t position_ = 0;
  EngramSegments segments_;
  int capacity_ = 0;
  std::vector<GraphEngram> engrams_;
  std::vector<size_t> recalled_;
  std::vector<int32_t> facts_;
  FiringCounts counts_;
};

}  // namespace mneme
