#include "engine/outbox.h"

#include <memory>
#include <string>

#include "gtest/gtest.h"

namespace mneme {
namespace {

TokenEvent Text(const std::string& text) {
  TokenEvent event;
  event.text = text;
  return event;
}

class OutboxTest : public ::testing::Test {
 protected:
  OutboxTest() {
    g.stream->SetReadyCallback([this] { ++calls; });
    EXPECT_FALSE(g.stream->TryNext().has_value()) << "the reader waits from now on";
  }

  IdempotencyTable keys{/*max_keys=*/4, /*max_bytes=*/1000};
  Outbox outbox{keys, /*notifier=*/nullptr};
  Generation g{Request(), std::make_shared<TokenStream>(/*capacity_events=*/10), absl::Duration()};
  int calls = 0;
};

TEST_F(OutboxTest, AnEventIsThereAtOnceAndItsReaderIsToldWithTheOthers) {
  outbox.Send(g, Text("a"));
  outbox.Send(g, Text("b"));
  EXPECT_EQ(calls, 0);
  outbox.Notify();
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(g.stream->TryNext()->text, "a");
  EXPECT_EQ(g.stream->TryNext()->text, "b");
  outbox.Notify();
  EXPECT_EQ(calls, 1) << "nothing is new";
}

TEST_F(OutboxTest, ALastEventWaitsUntilAllElseIsSettled) {
  TokenEvent last = Text("c");
  last.is_last = true;
  outbox.KeepLast(g, std::move(last));
  EXPECT_EQ(outbox.kept(), 1);
  EXPECT_FALSE(g.stream->TryNext().has_value());
  outbox.SendLast();
  EXPECT_EQ(outbox.kept(), 0);
  outbox.Notify();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(g.stream->TryNext()->is_last);
}

TEST_F(OutboxTest, EventsJoinTheRecordOfTheRequestsKey) {
  g.record = &keys.Insert("", "key", /*digest=*/1);
  outbox.Send(g, Text("a"));
  ASSERT_EQ(g.record->events.size(), 1u);
  EXPECT_EQ(g.record->events[0].text, "a");
}

}  // namespace
}  // namespace mneme
