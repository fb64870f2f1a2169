#include "base/clock.h"

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/support/fake_clock.h"

namespace mneme {
namespace {

TEST(RealClockTest, MonotonicTimeNeverGoesBackwards) {
  const RealClock clock;
  absl::Duration last = clock.Monotonic();
  for (int i = 0; i < 10'000; ++i) {
    const absl::Duration now = clock.Monotonic();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(RealClockTest, NowIsTheSystemsDate) {
  const RealClock clock;
  const absl::Time before = absl::Now();
  const absl::Time now = clock.Now();
  const absl::Time after = absl::Now();
  EXPECT_LE(before, now);
  EXPECT_LE(now, after);
}

TEST(FakeClockTest, TimePassesOnlyWhenAdvanced) {
  FakeClock clock(absl::FromUnixSeconds(5));
  const absl::Duration start = clock.Monotonic();
  const absl::Time date = clock.Now();
  EXPECT_EQ(clock.Monotonic(), start);
  clock.Advance(absl::Milliseconds(1500));
  EXPECT_EQ(clock.Monotonic() - start, absl::Milliseconds(1500));
  EXPECT_EQ(clock.Now() - date, absl::Milliseconds(1500));
}

}  // namespace
}  // namespace mneme
