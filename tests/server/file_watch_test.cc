// Files that are read again, and one that does not come.
#include "server/process/file_watch.h"

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

// A watch that has been asked, and is at a file that comes when the test says so.
class HangingFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto files = FileWatch::Start(
        {.reload = [this] { Reload(); }, .poll = [] {}, .interval = absl::Hours(1)});
    ASSERT_TRUE(files.ok()) << files.status();
    files_ = *std::move(files);
    files_->Ask();
    at_it_.WaitForNotification();
  }

  void Reload() {
    if (++reloads_ > 1) return asked_again_.Notify();
    at_it_.Notify();
    comes_.WaitForNotification();
  }

  absl::Notification at_it_, comes_, asked_again_;
  std::atomic<int> reloads_ = 0;
  std::unique_ptr<FileWatch> files_;  // last: its thread uses the others
};

TEST_F(HangingFileTest, HoldsNobodyUp) {
  for (int i = 0; i < 1000; ++i) files_->Ask();
  EXPECT_EQ(reloads_, 1);
  comes_.Notify();
  asked_again_.WaitForNotification();
  EXPECT_TRUE(files_->End(absl::Minutes(1)));
  EXPECT_EQ(reloads_, 2) << "once for all that asked meanwhile";
}

TEST_F(HangingFileTest, IsNotWaitedForAtTheEnd) {
  EXPECT_FALSE(files_->End(absl::Milliseconds(1)));
  comes_.Notify();
  EXPECT_TRUE(files_->End(absl::Minutes(1)));
}

}  // namespace
}  // namespace mneme
