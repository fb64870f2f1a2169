#include "models/mixers/engram_capacity.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/engrams.h"

namespace mneme {
namespace {

constexpr int kCapacityUnit = 64;

// n engrams, rounded up to what a store of whole units has.
int RoundedCapacity(double n) {
  return static_cast<int>(std::ceil(n / kCapacityUnit)) * kCapacityUnit;
}

// The mean number of engrams is W L0 + alpha R, R at most Rs + Rl + 1, less what lifespans grow by:
// the last term with a quarter more, and room for the new ones before any dies.
int LikelyCapacity(const EngramRules& rules) {
  const double gains = std::ceil(1.25 * rules.lifespan_scale * (rules.recalled() + 1));
  const double engrams =
      std::ceil(static_cast<double>(rules.working) * rules.lifespan) + gains + rules.working;
  constexpr double kFarTooMany = 1 << 24;
  return std::max(RoundedCapacity(std::min(engrams, kFarTooMany)),
                  RoundedCapacity(rules.least_capacity()));
}

}  // namespace

absl::StatusOr<int> EngramCapacity(const NetworkBuilder& builder, const EngramRules& rules) {
  const int asked = builder.engram_capacity;
  const int capacity = asked > 0 ? asked : LikelyCapacity(rules);
  if (capacity > kLargestEngramCapacity) {
    return absl::UnimplementedError(
        absl::StrCat("room for ", capacity, " engrams in a session (--engram-capacity",
                     asked > 0 ? "" : ", which follows from the model where it is not given",
                     "): expected at most ", kLargestEngramCapacity));
  }
  if (capacity < rules.least_capacity()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "room for ", capacity, " engrams in a session (--engram-capacity): expected at least ",
        rules.least_capacity(),
        ", those of two segments (memoria_num_memories) and the short-term ones "
        "(memoria_stm_capacity)"));
  }
  return capacity;
}

int EngramHistorySteps(int capacity) {
  return capacity > kMostCountedEngrams ? kEngramHistorySegments : 0;
}

}  // namespace mneme
