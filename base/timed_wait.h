// Waiting for a condition, by a clock that nobody sets.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"

namespace mneme {

// mu.AwaitWithTimeout(), which ends by the date and so gives up too early where that is set
// forward.
inline bool AwaitFor(absl::Mutex& mu, const absl::Condition& condition, absl::Duration timeout)
    ABSL_SHARED_LOCKS_REQUIRED(mu) {
  const RealClock clock;
  const absl::Duration end = clock.Monotonic() + timeout;
  for (absl::Duration left = timeout;; left = end - clock.Monotonic()) {
    if (mu.AwaitWithTimeout(condition, left)) return true;
    if (left <= absl::ZeroDuration()) return false;
  }
}

}  // namespace mneme
