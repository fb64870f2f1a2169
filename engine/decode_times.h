// How long steps take that only decode, by the number of their rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mneme {

// Means over many steps: they differ from each other, some by design. Owned and called by one
// thread. `now` counts steps.
class DecodeTimes {
 public:
  explicit DecodeTimes(int max_rows) : means_(static_cast<size_t>(max_rows) + 1) {}

  // A step of so many rows took so long. Numbers of rows that cannot be are ignored.
  void Observe(int rows, double seconds, int64_t now);

  // In seconds, from measurements of like row counts; negative if there is none. Sets `fresh` if it
  // may be relied on.
  double Seconds(int rows, int64_t now, bool& fresh) const;

 private:
  static constexpr int kMeanSteps = 32;    // a later one counts for one part in so many
  static constexpr int kStaleSteps = 3;    // a mean that is old counts for no more
  static constexpr int64_t kStale = 2000;  // steps after which a time is measured again

  struct Mean {
    double seconds = 0;
    int steps = 0;    // it is the mean of; no more than kMeanSteps
    int64_t at = -1;  // when it was measured; -1: never
  };
  std::vector<Mean> means_;  // [max_rows + 1]
};

}  // namespace mneme
