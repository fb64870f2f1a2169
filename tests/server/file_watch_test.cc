// Files that are read again, and one that does not come.
#include "server/file_watch.h"

#include <atomic>
#include <memory>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace mneme {
namespace {

TEST(FileWatchTest, LooksByItselfAndReadsWhenAsked) {
  absl::Notification polled, reloaded;
  const auto once = [](absl::Notification& done) {
    if (!done.HasBeenNotified()) done.Notify();
  };
  const auto files = FileWatch::Start({.reload = [&] { once(reloaded); },
                                       .poll = [&] { once(polled); },
                                       .interval = absl::Milliseconds(1)});
  ASSERT_TRUE(files.ok()) << files.status();
  polled.WaitForNotification();
  (*files)->Ask();
  reloaded.WaitForNotification();
  EXPECT_TRUE((*files)->End(absl::Minutes(1)));
}

TEST(FileWatchTest, AFileThatDoesNotComeHoldsNobodyUp) {
  absl::Notification at_it, comes, asked_again;
  std::atomic<int> reloads = 0;
  auto files = FileWatch::Start({.reload =
                                     [&] {
                                       if (++reloads > 1) return asked_again.Notify();
                                       at_it.Notify();
                                       comes.WaitForNotification();
                                     },
                                 .poll = [] {},
                                 .interval = absl::Hours(1)});
  ASSERT_TRUE(files.ok()) << files.status();
  (*files)->Ask();
  at_it.WaitForNotification();
  for (int i = 0; i < 1000; ++i) (*files)->Ask();
  EXPECT_EQ(reloads, 1);
  comes.Notify();
  asked_again.WaitForNotification();
  EXPECT_TRUE((*files)->End(absl::Minutes(1)));
  EXPECT_EQ(reloads, 2) << "once for all that asked meanwhile";
}

TEST(FileWatchTest, TheEndDoesNotWaitForAFileThatDoesNotCome) {
  absl::Notification at_it, comes;
  const auto files = FileWatch::Start({.reload =
                                           [&] {
                                             at_it.Notify();
                                             comes.WaitForNotification();
                                           },
                                       .poll = [] {},
                                       .interval = absl::Hours(1)});
  ASSERT_TRUE(files.ok()) << files.status();
  (*files)->Ask();
  at_it.WaitForNotification();
  EXPECT_FALSE((*files)->End(absl::Milliseconds(1)));
  comes.Notify();
  EXPECT_TRUE((*files)->End(absl::Minutes(1)));
}

}  // namespace
}  // namespace mneme
