// Signals that come while nobody looks, each in a process of its own.
#include "server/process/signals.h"

#include <signal.h>
#include <unistd.h>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "server/process/exit_code.h"

namespace mneme {
namespace {

using ::testing::ExitedWithCode;

// A thread that is in the middle of something.
[[noreturn]] void BeBusy() {
  while (true) absl::SleepFor(absl::Hours(1));
}

class SignalsDeathTest : public ::testing::Test {
 protected:
  SignalsDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(SignalsDeathTest, AProcessThatDoesNotEndIsEndedWhenItsTimeIsUp) {
  EXPECT_EXIT(
      {
        const auto signals = Signals::Start();
        (*signals)->LimitEnd(absl::Milliseconds(50));
        kill(getpid(), SIGTERM);
        BeBusy();
      },
      ExitedWithCode(kEndedByForce), "");
}

TEST_F(SignalsDeathTest, ASecondSignalEndsABusyProcess) {
  EXPECT_EXIT(
      {
        const auto signals = Signals::Start();
        (*signals)->LimitEnd(absl::Hours(1));
        kill(getpid(), SIGTERM);
        if ((*signals)->Wait(absl::Minutes(1)) != SIGTERM) _exit(99);
        kill(getpid(), SIGINT);
        BeBusy();
      },
      ExitedWithCode(130), "");
}

TEST_F(SignalsDeathTest, SignalsAreObeyedWhileDestructorsRun) {
  EXPECT_EXIT(
      {
        {
          const auto signals = Signals::Start();
          (*signals)->LimitEnd(absl::Hours(1));
        }
        kill(getpid(), SIGTERM);
        absl::SleepFor(absl::Milliseconds(300));  // one that is pending does not come twice
        kill(getpid(), SIGTERM);
        BeBusy();
      },
      ExitedWithCode(143), "");
}

TEST_F(SignalsDeathTest, TheEarliestEndCounts) {
  EXPECT_EXIT(
      {
        const auto signals = Signals::Start();
        (*signals)->EndWithin(absl::Milliseconds(50), kFatalDeviceError);
        (*signals)->EndWithin(absl::Hours(1), kEndedByForce);
        BeBusy();
      },
      ExitedWithCode(kFatalDeviceError), "");
}

TEST_F(SignalsDeathTest, AHangUpReloadsAndEndsNothing) {
  EXPECT_EXIT(
      {
        int reloads = 0;
        const auto signals = Signals::Start();
        (*signals)->OnHangUp([&reloads] { ++reloads; });
        (*signals)->LimitEnd(absl::ZeroDuration());
        for (int i = 1; i <= 3; ++i) {
          kill(getpid(), SIGHUP);
          while (reloads < i) {
            if ((*signals)->Wait(absl::Seconds(1)) != 0) _exit(99);
          }
        }
        _exit(42);
      },
      ExitedWithCode(42), "");
}

TEST_F(SignalsDeathTest, ASignalToEndGoesBeforeHangUpsAndThoseCountOnce) {
  EXPECT_EXIT(
      {
        int reloads = 0;
        const auto signals = Signals::Start();
        (*signals)->OnHangUp([&reloads] { ++reloads; });
        (*signals)->LimitEnd(absl::Hours(1));
        for (int i = 0; i < 50; ++i) {
          kill(getpid(), SIGHUP);
          absl::SleepFor(absl::Milliseconds(2));  // one that is pending does not come twice
        }
        kill(getpid(), SIGTERM);
        absl::SleepFor(absl::Milliseconds(300));  // all of it before anybody looks
        if ((*signals)->Wait(absl::Minutes(1)) != SIGTERM) _exit(97);
        if (reloads != 0) _exit(98);
        if ((*signals)->Wait(absl::Minutes(1)) != 0 || reloads != 1) _exit(99);
        _exit(42);
      },
      ExitedWithCode(42), "");
}

}  // namespace
}  // namespace mneme
