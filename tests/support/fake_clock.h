// A clock that stands still until a test moves it.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"

namespace mneme {

// Both readings advance together, until somebody sets the date. Thread-safe.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(absl::Time start = absl::FromUnixSeconds(1'000'000'000)) : date_(start) {}

  absl::Duration Monotonic() const override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return elapsed_;
  }

  absl::Time Now() const override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return date_ + elapsed_;
  }

  void Advance(absl::Duration by) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    elapsed_ += by;
  }

  // As when an administrator or NTP does: the monotonic reading knows nothing of it.
  void SetDateForward(absl::Duration by) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    date_ += by;
  }

 private:
  mutable absl::Mutex mu_;
  absl::Time date_ ABSL_GUARDED_BY(mu_);
  absl::Duration elapsed_ ABSL_GUARDED_BY(mu_) = absl::Seconds(1);
};

}  // namespace mneme
