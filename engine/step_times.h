// The time that prompts add to steps beside decoding rows, by the size of the step.
#pragma once

#include <cstdint>
#include <vector>

namespace mneme {

// A prompt's tokens add to a step what is no straight line: kernels work in tiles and in waves, so
// that a few tokens more may cost much, or nothing. But sizes are few, as a step with prompts has
// one of the LikelyStepTokens, all rows counted. So of each it is remembered what it added.
//
// Owned and called by one thread. `now` counts steps.
class StepTimes {
 public:
  explicit StepTimes(int max_tokens);

  // A step of so many tokens took so many seconds more than its decoding rows alone. Sizes that are
  // none of the LikelyStepTokens are ignored.
  void Observe(int decode_rows, int step_tokens, double added, int64_t now);

  // The mean of what such steps added, in seconds; negative if none beside about as many rows was
  // seen of late.
  double Added(int decode_rows, int step_tokens, int64_t now) const;

 private:
  static constexpr int kMeanSteps = 8;    // a later one counts for one part in so many
  static constexpr int64_t kStale = 400;  // steps after which a size is tried again

  struct Mean {
    double added = 0;
    int steps = 0;  // it is the mean of; no more than kMeanSteps
    int decode_rows = 0;
    int64_t at = 0;
  };
  static bool Holds(const Mean& mean, int decode_rows, int64_t now);

  std::vector<Mean> sizes_;  // by IndexOf
};

}  // namespace mneme
