#include "engine/decode_times.h"

#include <algorithm>

namespace mneme {

double DecodeTimes::Seconds(int rows, int64_t now, bool& fresh) const {
  fresh = false;
  // The nearest row count that was measured. Times grow by at most the ratio of the rows, and a
  // difference of an eighth in rows is less than the noise of a measurement.
  const int last = static_cast<int>(means_.size()) - 1;
  for (int distance = 0; distance <= last; ++distance) {
    for (const int measured : {rows - distance, rows + distance}) {
      if (measured < 1 || measured > last || means_[measured].at < 0) continue;
      fresh = now - means_[measured].at < kStale && distance * 8 <= rows;
      return means_[measured].seconds * std::min(1.0, static_cast<double>(rows) / measured);
    }
  }
  return -1;
}

void DecodeTimes::Observe(int rows, double seconds, int64_t now) {
  if (rows < 1 || rows >= static_cast<int>(means_.size())) return;
  Mean& mean = means_[rows];
  if (now - mean.at >= kStale) mean.steps = std::min(mean.steps, kStaleSteps);
  mean.steps = std::min(mean.steps + 1, kMeanSteps);
  mean.seconds += (seconds - mean.seconds) / mean.steps;
  mean.at = now;
}

}  // namespace mneme
