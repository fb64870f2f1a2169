// An engine that takes its time, and one that never comes back.
#include "server/watchdog.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/fake_engine.h"

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
  std::string LogAt(const LoopActivity& activity) {
    engine_.set_activity(activity);
    CaptureStderr();
    EXPECT_TRUE(watchdog_.Poll().ok());
    return GetCapturedStderr();
  }

  FakeEngine engine_;
  ServerStats stats_;
  Watchdog watchdog_{engine_, stats_};
};

TEST_F(WatchdogTest, HalfOfTheTimeIsAWarningThatSaysWhere) {
  EXPECT_THAT(LogAt({}), IsEmpty());
  EXPECT_THAT(LogAt(Sampling(absl::Minutes(2))), IsEmpty());
  EXPECT_THAT(LogAt(Sampling(absl::Seconds(151))),
              HasSubstr("watchdog: step 7 of 3 rows and 512 tokens is in phase sample for 2m31s, "
                        "2m31.02s after its turn began; the server gives up at 5m"));
  EXPECT_THAT(LogAt(Sampling(absl::Seconds(160))), IsEmpty()) << "it is said once";
  EXPECT_EQ(stats_.watchdog_warnings.value(), 1);
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

}  // namespace
}  // namespace mneme
