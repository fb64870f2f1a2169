#include "engine/phase_clock.h"

#include "engine/throughput_log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_clock.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;
using ::testing::internal::CaptureStderr;
using ::testing::internal::GetCapturedStderr;

TEST(PhaseClockTest, AllTimeBelongsToOnePhase) {
  FakeClock clock;
  EngineStats stats;
  PhaseClock phases(clock, stats);
  const auto spent = [&](StepPhase phase) {
    return absl::Nanoseconds(stats.phase_nanoseconds[static_cast<size_t>(phase)].value());
  };
  clock.Advance(absl::Seconds(5));
  phases.BeginTurn(StepPhase::kPlan, /*steps=*/7);
  phases.SetStep(/*rows=*/3, /*tokens=*/40);
  clock.Advance(absl::Seconds(2));
  EXPECT_EQ(phases.End(StepPhase::kPlan, StepPhase::kForward), clock.Monotonic());
  clock.Advance(absl::Seconds(1));
  phases.End(StepPhase::kForward, StepPhase::kSample);
  EXPECT_EQ(spent(StepPhase::kIdle), absl::Seconds(5));
  EXPECT_EQ(spent(StepPhase::kPlan), absl::Seconds(2));
  EXPECT_EQ(spent(StepPhase::kForward), absl::Seconds(1));

  clock.Advance(absl::Seconds(4));
  const LoopActivity activity = phases.activity();
  EXPECT_EQ(activity.phase, StepPhase::kSample);
  EXPECT_EQ(activity.in_phase, absl::Seconds(4));
  EXPECT_EQ(activity.in_turn, absl::Seconds(7));
  EXPECT_EQ(activity.step, 7);
  EXPECT_EQ(activity.rows, 3);
  EXPECT_EQ(activity.tokens, 40);
}

TEST(ThroughputLogTest, ALineEveryTenSecondsLeavesIdleTimeOut) {
  FakeClock clock;
  EngineStats stats;
  stats.slabs_total.Set(8);
  stats.slabs_used.Set(2);
  stats.requests_running.Set(3);
  ThroughputLog log(stats, clock.Monotonic());
  clock.Advance(absl::Hours(1));
  log.Restart(clock.Monotonic());
  stats.prompt_tokens.Add(500);
  stats.generated_tokens.Add(30);
  clock.Advance(absl::Seconds(9));
  SetMinLogSeverity(LogSeverity::kInfo);
  CaptureStderr();
  log.WriteIfDue(clock.Monotonic());
  EXPECT_EQ(GetCapturedStderr(), "");
  clock.Advance(absl::Seconds(1));
  CaptureStderr();
  log.WriteIfDue(clock.Monotonic());
  EXPECT_THAT(GetCapturedStderr(),
              HasSubstr("Avg prompt throughput: 50.0 tokens/s, Avg generation throughput: 3.0 "
                        "tokens/s, Running: 3 reqs, Waiting: 0 reqs, State slots used: 25.0% (2 of "
                        "8)\n"));
  CaptureStderr();
  log.WriteIfDue(clock.Monotonic());
  EXPECT_EQ(GetCapturedStderr(), "") << "the next one is ten seconds away";
}

}  // namespace
}  // namespace mneme
