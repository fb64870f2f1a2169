// Serving at the edges: no room, a full queue, shutting down under load.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "clients/cpp/error_details.h"
#include "tests/integration/running_server.h"

namespace mneme {
namespace {

using ::testing::SizeIs;

// An endless request on a thread of its own, cancelled at the end.
class Occupant {
 public:
  Occupant(RunningServer& server, const std::string& session)
      : thread_([this, &server, session] {
          answer_ = RunningServer::Generate(server.client(), Endless(session), &running_, &cancel_);
        }) {}
  ~Occupant() { Join(); }

  void WaitUntilRunning() { running_.WaitForNotification(); }
  const Reply& Join() {
    cancel_.Cancel();
    return Wait();
  }
  const Reply& Wait() {
    if (thread_.joinable()) thread_.join();
    return answer_;
  }

 private:
  Reply answer_;
  absl::Notification running_;
  CancelToken cancel_;
  std::thread thread_;
};

TEST(LimitsTest, NamedSessionsThatFillAllPlacesLeaveNoneForOthers) {
  RunningServer server({"--max-sessions=2"});
  ASSERT_TRUE(server.Generate(Greedy("a", 1, "one")).status.ok());
  ASSERT_TRUE(server.Generate(Greedy("a", 1, "two")).status.ok());
  for (const char* session : {"three", ""}) {
    const absl::Status full = server.Generate(Greedy("a", 1, session)).status;
    EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
    EXPECT_EQ(DetailsOf(full).reason, "NO_FREE_SLAB");
    EXPECT_TRUE(DetailsOf(full).retry_after.has_value());
  }
  EXPECT_EQ(server.client().CreateSession({}).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(server.Generate(Greedy("a", 1, "one")).status.ok()) << "its place is its own";
  ASSERT_TRUE(server.client().DeleteSession("two").ok());
  EXPECT_TRUE(server.Generate(Greedy("a", 1, "three")).status.ok());
}

TEST(LimitsTest, ARequestWaitsForAPlaceThatWillBeFree) {
  RunningServer server({"--max-sessions=1"});
  Occupant occupant(server, "");
  occupant.WaitUntilRunning();
  Reply answer;
  std::thread waiting([&] { answer = server.Generate(Greedy("a", 3)); });
  while (server.client().GetInfo()->statistics().requests_waiting() == 0) {
  }
  EXPECT_EQ(occupant.Join().status.code(), absl::StatusCode::kCancelled);
  waiting.join();
  EXPECT_TRUE(answer.status.ok()) << answer.status;
}

TEST(LimitsTest, AFullQueueSaysWhenToTryAgain) {
  RunningServer server({"--max-sessions=1", "--max-num-queued-reqs=1"});
  Occupant running(server, "");
  running.WaitUntilRunning();
  Occupant waiting(server, "");
  while (server.client().GetInfo()->statistics().requests_waiting() == 0) {
  }
  const absl::Status full = server.Generate(Greedy("a", 1)).status;
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  EXPECT_EQ(DetailsOf(full).reason, "QUEUE_FULL");
  EXPECT_TRUE(DetailsOf(full).retry_after.has_value());
}

// Whether a request of session "late" was in the queue when its deadline passed: on a busy machine
// it may not have come so far.
bool ExpiresInTheQueue(RunningServer& server, absl::Duration timeout) {
  Client hasty({.target = server.target(), .timeout = timeout});
  absl::Notification done;
  std::thread late([&] {
    EXPECT_EQ(RunningServer::Generate(hasty, Greedy("never fed", 1, "late")).status.code(),
              absl::StatusCode::kDeadlineExceeded);
    done.Notify();
  });
  bool was_queued = false;
  while (!done.HasBeenNotified()) {
    was_queued |= server.client().GetInfo()->statistics().requests_waiting() > 0;
  }
  late.join();
  return was_queued;
}

TEST(LimitsTest, QueuedWorkExpiresBeforeItCostsTime) {
  RunningServer server({"--max-sessions=1"});
  Occupant occupant(server, "");
  occupant.WaitUntilRunning();
  absl::Duration timeout = absl::Milliseconds(100);
  while (!ExpiresInTheQueue(server, timeout)) timeout *= 2;
  // Its client has left, and the server hears of that in its own time.
  while (server.client().GetInfo()->statistics().requests_waiting() > 0) {
  }
  occupant.Join();
  EXPECT_EQ(server.client().GetSession("late").status().code(), absl::StatusCode::kNotFound);
}

TEST(LimitsTest, RequestsMayBeBounded) {
  RunningServer server({"--max-model-len=20"});
  EXPECT_TRUE(server.Generate(Greedy("12345", 15)).status.ok());
  EXPECT_EQ(server.Generate(Greedy("12345", 16)).status.code(), absl::StatusCode::kInvalidArgument);
}

TEST(LimitsTest, ADrainLetsRunningRequestsFinish) {
  RunningServer server;
  Reply answer;
  absl::Notification running;
  std::thread thread(
      [&] { answer = RunningServer::Generate(server.client(), Greedy("a", 500), &running); });
  running.WaitForNotification();
  server.grpc().SetServing(false);
  server.access().SetDraining();
  EXPECT_FALSE(*server.client().IsServing());
  EXPECT_EQ(server.Generate(Greedy("late", 1)).status.code(), absl::StatusCode::kUnavailable);
  server.engine().Drain(absl::Hours(1));
  thread.join();
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_THAT(answer.tokens, SizeIs(500));
}

TEST(LimitsTest, ADrainThatRunsOutOfTimeTellsItsClients) {
  RunningServer server;
  Occupant endless(server, "s");
  endless.WaitUntilRunning();
  server.access().SetDraining();
  server.engine().Drain(absl::Milliseconds(10));
  const absl::Status status = endless.Wait().status;
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

}  // namespace
}  // namespace mneme
