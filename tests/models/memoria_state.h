// A session's engrams as a test wants to see them: oldest first, wherever they lie.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/ops/engrams.h"
#include "tests/models/model_driver.h"

namespace mneme {

struct MemoriaConfig {
  int segment = 1;
  EngramRules rules;
};
// The keys of a folder's config.json, which has all of them.
MemoriaConfig ReadMemoriaConfig(const std::string& folder);

struct MemoriaState {
  struct Engram {
    uint32_t birth = 0;
    EngramType type = EngramType::kFree;
    double lifespan = 0, gain = 0;
    std::vector<double> x;
    std::vector<int32_t> counts;  // with each of `engrams`
  };
  std::vector<Engram> engrams;   // alive, oldest first
  std::vector<size_t> recalled;  // of them, in the store's order
  std::vector<int32_t> facts;
  std::vector<double> weights;  // w_i of CommitEngrams, at a segment's last token

  int32_t count(size_t i, size_t j) const { return engrams[i].counts[j]; }
};
MemoriaState ReadMemoriaState(ModelDriver& driver, int slot);

// What ScoreEngrams makes of a session's short-term and long-term engrams.
std::map<uint32_t, double> ScoresByBirth(ModelDriver& driver, int slot, const EngramRules& rules,
                                         const MemoriaState& state, int segment);

}  // namespace mneme
