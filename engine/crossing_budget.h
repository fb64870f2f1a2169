// How many rows of a step may begin a segment beside rows that decode.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "engine/decode_times.h"

namespace mneme {

// Where a model makes engrams of segments (ModelInfo::segment), the step in which rows cross from
// one segment into the next is longer, and all who decode in it wait. Let a step with d rows none
// of which crosses take D(d), and c crossings add X(c). The budget is the largest c for which
//
//   D(d) + X(c) <= slowdown * D(d)
//
// as of PrefillBudget. What every such step costs once makes X(c) / c fall with c, so that c' > c
// crossings take at most X(c) c' / c: that is what is believed of numbers that were not met, and
// those that proved too long are not tried again for a while. At least one row crosses.
// Budgets change when a row runs, never a result.
//
// Owned and called by one thread.
class CrossingBudget {
 public:
  // slowdown <= 1: always max_rows.
  CrossingBudget(int max_rows, double slowdown);

  // The crossings of a step beside so many decoding rows.
  int Most(int decode_rows) const;
  // X(crossings), as far as it is known; else 0.
  double Added(int crossings) const;

  // A step in which all rows decoded, `crossings` of which crossed, and how long after those of the
  // step before its tokens came. How much of that the crossings took, as it was measured (not
  // below 0); nothing of a step without any, nor where no step of about as many rows was measured
  // lately that had none.
  std::optional<absl::Duration> Observe(int decode_rows, int crossings, absl::Duration time);

 private:
  static constexpr int kFirst = 8;         // while nothing is known
  static constexpr int kMeanSteps = 8;     // a later one counts for one part in so many
  static constexpr int64_t kStale = 2000;  // steps after which a number is tried again

  struct Mean {
    double crossings = 0, added = 0;
    int steps = 0;  // it is the mean of; no more than kMeanSteps
    int64_t at = 0;
  };
  bool Holds(const Mean& mean) const { return mean.steps > 0 && step_ - mean.at < kStale; }

  const int max_rows_;
  const double slowdown_;
  DecodeTimes decode_;       // of steps without crossings
  std::vector<Mean> means_;  // of crossings from 2^i on
  int64_t step_ = 0;
};

}  // namespace mneme
