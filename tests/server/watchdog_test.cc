// An engine that takes its time, and one that never comes back.
#include "server/process/watchdog.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/fake_engine.h"
#include "tests/support/fake_clock.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::internal::CaptureStderr;
using ::testing::internal::GetCapturedStderr;

// In phase sample of step 7, since `time`; the watchdog's limit is 5 minutes.
LoopActivity Sampling(absl::Duration time) {
  return {.phase = StepPhase::kSample,
          .in_phase = time,
          .in_turn = time + absl::Milliseconds(20),
          .step = 7,
          .rows = 3,
          .tokens = 512};
}

class WatchdogTest : public ::testing::Test {
 protected:
  static constexpr absl::Duration kPoll = absl::Milliseconds(100);

  // The lines that a look at the engine logs, `after` the one before it.
  std::string LogAt(const LoopActivity& activity, absl::Duration after = kPoll) {
    engine_.set_activity(activity);
    clock_.Advance(after);
    CaptureStderr();
    health_ = watchdog_.Poll();
    return GetCapturedStderr();
  }

  // The step under way goes on for so long, looked at all the time, unless it is stuck before.
  void GoOn(absl::Duration time) {
    for (absl::Duration gone; gone < time && health_.ok(); gone += kPoll) {
      const absl::Duration before = engine_.activity().in_phase;
      LogAt(Sampling(before + kPoll));
    }
  }

  FakeEngine engine_;
  FakeClock clock_;
  ServerStats stats_;
  bool is_late_ = false;
  absl::Status health_;
  Watchdog watchdog_{engine_,
                     clock_,
                     stats_,
                     {.limit = absl::Minutes(5),
                      .poll_interval = kPoll,
                      .on_late = [this](bool is_late) { is_late_ = is_late; }}};
};

TEST_F(WatchdogTest, HalfOfTheTimeIsAWarningThatSaysWhere) {
  EXPECT_THAT(LogAt({}), IsEmpty());
  EXPECT_THAT(LogAt(Sampling(absl::Minutes(2))), IsEmpty());
  EXPECT_THAT(LogAt(Sampling(absl::Seconds(151))),
              HasSubstr("watchdog: step 7 of 3 rows and 512 tokens is in phase sample for 2m31s, "
                        "2m31.02s after its turn began; the server gives up at 5m"));
  EXPECT_THAT(LogAt(Sampling(absl::Seconds(160))), IsEmpty()) << "it is said once";
  EXPECT_EQ(stats_.watchdog_warnings.value(), 1);
  EXPECT_TRUE(health_.ok());
}

TEST_F(WatchdogTest, AStepThatGoesOnIsMentioned) {
  LogAt(Sampling(absl::Seconds(155)));
  EXPECT_THAT(LogAt({}), HasSubstr("step 7 went on after more than 2m35.02s"));
  EXPECT_THAT(LogAt({}), IsEmpty());
  LoopActivity next = Sampling(absl::Seconds(200));
  next.step = 8;
  EXPECT_THAT(LogAt(next), HasSubstr("step 8"));
  EXPECT_EQ(stats_.watchdog_warnings.value(), 2);
}

TEST_F(WatchdogTest, HealthFollowsTheEngine) {
  LogAt(Sampling(absl::Seconds(149)));
  EXPECT_FALSE(is_late_);
  LogAt(Sampling(absl::Seconds(151)));
  EXPECT_TRUE(is_late_);
  LoopActivity next = Sampling(absl::Seconds(200));
  next.step = 8;
  LogAt(next);
  EXPECT_TRUE(is_late_) << "the next one is late, too";
  LogAt({});
  EXPECT_FALSE(is_late_);
}

TEST_F(WatchdogTest, AStepLongerThanTheLimitIsStuck) {
  LogAt(Sampling(absl::Seconds(299)));
  EXPECT_TRUE(health_.ok());
  LogAt(Sampling(absl::Minutes(6)));
  EXPECT_TRUE(absl::IsInternal(health_));
  EXPECT_EQ(health_.message(),
            "stuck: step 7 of 3 rows and 512 tokens is in phase sample for 6m, 6m0.02s after its "
            "turn began, longer than 5m");
}

TEST_F(WatchdogTest, TimeForWhichTheProcessWasStoppedCountsForNothing) {
  LogAt(Sampling(absl::Milliseconds(80)));
  EXPECT_THAT(
      LogAt(Sampling(absl::Minutes(10)), /*after=*/absl::Minutes(10)),
      HasSubstr("pause: the process did not run for 9m59.9s: stopped, suspended, or no time "
                "for it on this machine pause_ms=599900.000\n"));
  EXPECT_TRUE(health_.ok());
  EXPECT_FALSE(is_late_);
  GoOn(absl::Seconds(149));
  EXPECT_FALSE(is_late_);
  GoOn(absl::Seconds(2));
  EXPECT_TRUE(is_late_) << "time after the pause counts";
  EXPECT_TRUE(health_.ok());
  GoOn(absl::Seconds(150));
  EXPECT_TRUE(absl::IsInternal(health_));
}

TEST_F(WatchdogTest, APauseBeforeTheStepBeganIsNotDiscounted) {
  LogAt({});
  LogAt(Sampling(absl::Milliseconds(0)), /*after=*/absl::Minutes(10));
  GoOn(absl::Seconds(299));
  EXPECT_TRUE(health_.ok());
  GoOn(absl::Seconds(2));
  EXPECT_TRUE(absl::IsInternal(health_));
}

}  // namespace
}  // namespace mneme
