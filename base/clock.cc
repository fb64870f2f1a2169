#include "base/clock.h"

#include <ctime>

#include "absl/time/clock.h"

namespace mneme {

absl::Duration RealClock::Monotonic() const {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return absl::DurationFromTimespec(now);
}

absl::Time RealClock::Now() const { return absl::Now(); }

}  // namespace mneme
