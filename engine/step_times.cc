#include "engine/step_times.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdlib>

#include "engine/scheduler.h"

namespace mneme {
namespace {

// The index of a size that is one of the LikelyStepTokens: those below 16 have themselves for
// index, then there are eight in each octave.
size_t IndexOf(int step_tokens) {
  const int octave =
      std::max(0, static_cast<int>(std::bit_width(static_cast<unsigned>(step_tokens))) - 4);
  return static_cast<size_t>(8 * octave + (step_tokens >> octave));
}

}  // namespace

StepTimes::StepTimes(int max_tokens) : sizes_(IndexOf(LikelyStepTokens(max_tokens)) + 1) {}

bool StepTimes::Holds(const Mean& mean, int decode_rows, int64_t now) {
  return mean.steps > 0 && now - mean.at < kStale &&
         8 * std::abs(decode_rows - mean.decode_rows) <= decode_rows;
}

void StepTimes::Observe(int decode_rows, int step_tokens, double added, int64_t now) {
  if (LikelyStepTokens(step_tokens) != step_tokens || IndexOf(step_tokens) >= sizes_.size()) return;
  Mean& mean = sizes_[IndexOf(step_tokens)];
  if (!Holds(mean, decode_rows, now)) mean = {};
  mean.steps = std::min(mean.steps + 1, kMeanSteps);
  mean.added += (added - mean.added) / mean.steps;
  mean.decode_rows = decode_rows;
  mean.at = now;
}

double StepTimes::Added(int decode_rows, int step_tokens, int64_t now) const {
  const size_t index = IndexOf(step_tokens);
  if (LikelyStepTokens(step_tokens) != step_tokens || index >= sizes_.size()) return -1;
  return Holds(sizes_[index], decode_rows, now) ? sizes_[index].added : -1;
}

}  // namespace mneme
