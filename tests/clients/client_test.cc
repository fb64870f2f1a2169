#include "clients/cpp/client.h"

#include <gtest/gtest.h>

#include <optional>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "mneme/v1/inference.pb.h"

namespace mneme {
namespace {

// The last channel of a process takes gRPC's callback threads with it, which cannot join
// themselves: a call that still holds the channel after its last callback would end it on one of
// them.
TEST(ClientTest, MayBeDestroyedOnceTheLastCallbackHasBegun) {
  std::optional<Client> client(ClientOptions{.target = "unix:/no/such/socket"});
  absl::Notification has_begun;
  absl::Notification has_ended;
  absl::StatusCode code = absl::StatusCode::kOk;
  client->GenerateAsync(
      v1::GenerateRequest(), [](const v1::GenerateResponse&) {},
      [&](const absl::Status& status) {
        code = status.code();
        has_begun.Notify();
        absl::SleepFor(absl::Milliseconds(100));  // the client goes meanwhile
        has_ended.Notify();
      });
  has_begun.WaitForNotification();
  client.reset();
  has_ended.WaitForNotification();
  EXPECT_EQ(code, absl::StatusCode::kUnavailable);
  absl::SleepFor(absl::Milliseconds(200));  // for gRPC's thread to go on, and to crash if it does
}

}  // namespace
}  // namespace mneme
