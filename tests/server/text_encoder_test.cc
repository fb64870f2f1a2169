#include "server/requests/text_encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "absl/synchronization/notification.h"

namespace mneme {
namespace {

TEST(TextEncoderTest, TurnsAreAnOwnersOrWhereAllAreAnonymousAHosts) {
  EXPECT_EQ(TextOwner("anna", "10.0.0.1:4711"), TextOwner("anna", "10.0.0.2:1"));
  EXPECT_NE(TextOwner("anna", "10.0.0.1:4711"), TextOwner("ben", "10.0.0.1:4711"));
  EXPECT_EQ(TextOwner("", "10.0.0.1:4711"), TextOwner("", "10.0.0.1:4712"));
  EXPECT_NE(TextOwner("", "10.0.0.1:4711"), TextOwner("", "10.0.0.2:4711"));
  EXPECT_EQ(TextOwner("", "[::1]:4711"), TextOwner("", "[::1]:1"));
  EXPECT_NE(TextOwner("10.0.0.1", ""), TextOwner("", "10.0.0.1:1")) << "nobody is called a host";
}

TEST(TextEncoderTest, RoomIsForSoManyBytesAtOnceInTheOrderOfAsking) {
  EncodingRoom room(100);
  WorkMeter meter;
  ASSERT_TRUE(room.Enter(60, meter).ok());
  ASSERT_TRUE(room.Enter(40, meter).ok());
  absl::Notification asks, entered;
  std::thread large([&] {
    // It is asked while it waits, so it has its place in the queue by then.
    WorkMeter waiting([&]() -> absl::Status {
      if (!asks.HasBeenNotified()) asks.Notify();
      return absl::OkStatus();
    });
    EXPECT_TRUE(room.Enter(1000, waiting).ok());  // larger than all of it: alone
    entered.Notify();
  });
  asks.WaitForNotification();
  room.Leave(60);
  // A text that would fit waits behind those that asked before it, and leaves its place when it
  // gives up.
  WorkMeter unwanted([] { return absl::DeadlineExceededError("late"); });
  EXPECT_EQ(room.Enter(10, unwanted).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(entered.HasBeenNotified());
  room.Leave(40);
  large.join();
  room.Leave(1000);
  EXPECT_TRUE(room.Enter(100, meter).ok());
  room.Leave(100);
}

TEST(TextEncoderTest, AbandonedExecutorsSaySo) {
  TextExecutors executors;
  EXPECT_EQ(executors.For(100), nullptr);
  EXPECT_NE(executors.For(10'000), executors.For(1'000'000));
  EXPECT_TRUE(executors.StillOpen().ok());
  executors.Abandon();
  EXPECT_EQ(executors.StillOpen().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace mneme
