#include "server/requests/lanes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

namespace mneme {
namespace {

using ::testing::ElementsAre;

// A task that runs until it is told to end.
// Declared before the lanes whose threads wait for it, it outlives them.
struct Blocker {
  absl::Notification started, finish;
  std::function<void()> task() {
    return [this] {
      started.Notify();
      finish.WaitForNotification();
    };
  }
};

TEST(LanesTest, OwnersTakeTurnsWhateverTheyHaveWaiting) {
  std::vector<std::string> order;
  {
    Blocker first;
    Lanes lanes(1, 100);
    EXPECT_TRUE(lanes.TryPost("first", first.task()));
    first.started.WaitForNotification();
    for (int i = 0; i < 4; ++i) {
      EXPECT_TRUE(lanes.TryPost("many", [&order, i] { order.push_back(absl::StrCat("many", i)); }));
    }
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(lanes.TryPost("few", [&order, i] { order.push_back(absl::StrCat("few", i)); }));
    }
    first.finish.Notify();
  }
  EXPECT_THAT(order, ElementsAre("many0", "few0", "many1", "few1", "many2", "many3"));
}

TEST(LanesTest, NobodyHasAllThreads) {
  Blocker busy[3], other;
  Lanes lanes(3, 100);
  for (Blocker& each : busy) EXPECT_TRUE(lanes.TryPost("busy", each.task()));
  busy[0].started.WaitForNotification();
  busy[1].started.WaitForNotification();
  EXPECT_TRUE(lanes.TryPost("other", other.task()));
  other.started.WaitForNotification();  // hangs where the third of the busy one has the thread
  EXPECT_FALSE(busy[2].started.HasBeenNotified());
  busy[0].finish.Notify();
  busy[2].started.WaitForNotification();
  busy[1].finish.Notify();
  busy[2].finish.Notify();
  other.finish.Notify();
}

TEST(LanesTest, ABacklogLeavesPlacesForOthers) {
  Blocker first;
  Lanes lanes(1, 16);
  EXPECT_TRUE(lanes.TryPost("first", first.task()));
  first.started.WaitForNotification();
  const auto fill = [&](const std::string& owner) {
    int places = 0;
    while (lanes.TryPost(owner, [] {})) ++places;
    return places;
  };
  EXPECT_EQ(fill("a"), 12);
  EXPECT_EQ(fill("b"), 3);
  EXPECT_EQ(fill("c"), 1);
  EXPECT_EQ(fill("d"), 0);  // all of it is bounded
  first.finish.Notify();
}

TEST(LanesTest, AllTasksRunBeforeTheEnd) {
  int ran = 0;
  {
    Lanes lanes(1, 100);
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(lanes.TryPost("one", [&ran] { ++ran; }));
  }
  EXPECT_EQ(ran, 20);
}

}  // namespace
}  // namespace mneme
