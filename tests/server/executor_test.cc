#include "server/requests/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "absl/synchronization/notification.h"

namespace mneme {
namespace {

using ::testing::ElementsAre;

TEST(ExecutorTest, TasksStartInOrderAndAllRunBeforeTheEnd) {
  std::vector<int> order;
  {
    Executor executor(1, 10);
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(executor.TryPost([&order, i] { order.push_back(i); }));
    }
  }
  EXPECT_THAT(order, ElementsAre(0, 1, 2));
}

TEST(ExecutorTest, AFullQueueRefusesInsteadOfGrowing) {
  absl::Notification started, finish;
  int ran = 0;
  {
    Executor executor(1, 2);
    EXPECT_TRUE(executor.TryPost([&] {
      started.Notify();
      finish.WaitForNotification();
    }));
    started.WaitForNotification();  // this one waits no longer
    EXPECT_TRUE(executor.TryPost([&ran] { ran += 1; }));
    EXPECT_TRUE(executor.TryPost([&ran] { ran += 1; }));
    EXPECT_FALSE(executor.TryPost([&ran] { ran += 100; }));
    finish.Notify();
  }
  EXPECT_EQ(ran, 2);
}

}  // namespace
}  // namespace mneme
