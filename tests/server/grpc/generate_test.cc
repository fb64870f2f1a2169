// Answers of Inference.Generate, from the engine to the wire, and how they end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "clients/cpp/error_details.h"
#include "tests/server/grpc/generate_fixture.h"

namespace mneme {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(GenerateTest, EventsArriveInOrderWithFactsAtBothEnds) {
  v1::GenerateRequest request = TextRequest("ab");
  request.mutable_session()->set_name("s");
  request.set_request_id("my-id");
  Call call(*client_, request);
  FakeRequest& fake = engine_.WaitForRequest(0);
  fake.PushStart();
  call.WaitForFirstMessage();
  fake.PushText("one ");
  fake.PushText("two");
  fake.PushEnd();
  EXPECT_TRUE(call.Join().ok()) << call.Join();
  EXPECT_EQ(call.Text(), "one two");
  ASSERT_THAT(call.started_, SizeIs(1));
  EXPECT_EQ(call.started_[0].request_id(), "my-id");
  EXPECT_EQ(call.started_[0].resumed_tokens(), 7);
  EXPECT_EQ(call.started_[0].seed(), 42);
  ASSERT_THAT(call.finished_, SizeIs(1));
  EXPECT_EQ(call.finished_[0].usage().fed_tokens(), 11);
  EXPECT_EQ(call.finished_[0].session().name(), "s");
  EXPECT_EQ(call.finished_[0].session().position(), 12);
  EXPECT_TRUE(call.finished_[0].session().has_pending_token());
  EXPECT_EQ(call.outputs_.back().finish_reason(), v1::FINISH_REASON_LENGTH);
}

TEST_F(GenerateTest, SurpriseIsInTheUsageOfThoseWhoAsked) {
  for (const bool asks : {false, true}) {
    v1::GenerateRequest request = TextRequest("ab");
    request.mutable_response()->set_surprise(asks);
    Call call(*client_, request);
    FakeRequest& fake = engine_.WaitForRequest(count_++);
    fake.PushEnd();
    ASSERT_TRUE(call.Join().ok()) << call.Join();
    ASSERT_THAT(call.finished_, SizeIs(1));
    EXPECT_EQ(call.finished_[0].usage().has_surprise(), asks);
    EXPECT_EQ(call.finished_[0].usage().surprise(), asks ? 0.25 : 0);
  }
}

TEST_F(GenerateTest, WhatAnAnswerDrewOnIsInTheUsageOfThoseWhoAsked) {
  for (const bool asks : {false, true}) {
    v1::GenerateRequest request = TextRequest("ab");
    request.mutable_response()->set_memory_use(asks);
    Call call(*client_, request);
    FakeRequest& fake = engine_.WaitForRequest(count_++);
    TokenEvent end{.finish = FinishReason::kLength, .is_last = true};
    end.usage.memory_evicted = asks;
    if (fake.request.memory_use) {
      end.usage.memory_use = MemoryUse{
          .sources =
              {{.segment = 3,
                .first_token = 30,
                .end_token = 40,
                .long_term = true,
                .engrams = 4,
                .weight = 0.75},
               {.segment = 5, .first_token = 50, .end_token = 60, .engrams = 1, .weight = 0.25}},
          .evictions = 7};
    }
    fake.Push(std::move(end));
    ASSERT_TRUE(call.Join().ok()) << call.Join();
    ASSERT_THAT(call.finished_, SizeIs(1));
    const v1::Usage& usage = call.finished_[0].usage();
    EXPECT_EQ(usage.memory_evicted(), asks);
    ASSERT_EQ(usage.has_memory_use(), asks);
    if (!asks) continue;
    EXPECT_EQ(usage.memory_use().evictions(), 7);
    ASSERT_EQ(usage.memory_use().sources_size(), 2);
    const v1::MemoryUse::Source& first = usage.memory_use().sources(0);
    EXPECT_EQ(first.segment().segment(), 3);
    EXPECT_EQ(first.segment().first_token(), 30);
    EXPECT_EQ(first.segment().end_token(), 40);
    EXPECT_EQ(first.kind(), v1::ENGRAM_KIND_LONG_TERM);
    EXPECT_EQ(first.engrams(), 4);
    EXPECT_EQ(first.weight(), 0.75);
    EXPECT_EQ(usage.memory_use().sources(1).kind(), v1::ENGRAM_KIND_SHORT_TERM);
  }
}

TEST_F(GenerateTest, ErrorsOfTheEngineArriveWithTheirDetails) {
  engine_.RefuseWith(WithRetryAfter(
      WithReason(absl::ResourceExhaustedError("queue full"), kReasonQueueFull), absl::Seconds(3)));
  const absl::Status status = Refused(TextRequest("a"));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(DetailsOf(status).reason, "QUEUE_FULL");
  EXPECT_EQ(DetailsOf(status).retry_after, absl::Seconds(3));
}

TEST_F(GenerateTest, AnErrorAfterSomeTextComesAfterThatText) {
  Call call(*client_, TextRequest("a"));
  FakeRequest& fake = engine_.WaitForRequest(0);
  fake.PushStart();
  fake.PushText("some");
  fake.PushEnd(WithPosition(absl::InternalError("step failed"), 77));
  EXPECT_EQ(call.Join().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(call.Text(), "some");
  EXPECT_THAT(call.finished_, IsEmpty());
  EXPECT_EQ(DetailsOf(call.Join()).metadata.at("position"), "77");
}

TEST_F(GenerateTest, AClientThatLeavesCancelsItsRequest) {
  Call call(*client_, TextRequest("a"));
  engine_.WaitForRequest(0).PushStart();
  call.WaitForFirstMessage();
  call.Cancel();
  engine_.WaitForCancel(0);
  EXPECT_EQ(call.Join().code(), absl::StatusCode::kCancelled);
}

TEST_F(GenerateTest, AClientThatLeavesADetachedRequestDoesNot) {
  v1::GenerateRequest request = TextRequest("a");
  request.set_detached(true);
  request.set_idempotency_key("key");
  Call call(*client_, request);
  FakeRequest& fake = engine_.WaitForRequest(0);
  EXPECT_TRUE(fake.request.detached);
  fake.PushStart();
  call.WaitForFirstMessage();
  call.Cancel();
  EXPECT_EQ(call.Join().code(), absl::StatusCode::kCancelled);
  server_->Shutdown(absl::Seconds(10));  // every call of gRPC's is over now
  EXPECT_FALSE(fake.stream->cancelled());
  for (int i = 0; i < 100; ++i) fake.PushText("x");
  // The stream takes everything from the moment that its reader has left it.
  while (fake.stream->full()) absl::SleepFor(absl::Milliseconds(1));
}

TEST_F(GenerateTest, ADeadlineEndsTheCall) {
  Client hasty({.target = target(), .timeout = absl::Milliseconds(50)});
  EXPECT_EQ(hasty.Generate(TextRequest("a"), [](const v1::GenerateResponse&) {}).code(),
            absl::StatusCode::kDeadlineExceeded);
}

// A reader that does not read fills HTTP/2's windows, then the stream; nobody else is held up.
TEST_F(GenerateTest, ASlowReaderFillsItsOwnStreamAndLosesNothing) {
  absl::Notification may_read;
  absl::Notification first;
  std::string text;
  std::thread reader([&] {
    const absl::Status status =
        client_->Generate(TextRequest("slow"), [&](const v1::GenerateResponse& response) {
          if (!first.HasBeenNotified()) first.Notify();
          may_read.WaitForNotification();
          for (const v1::Output& output : response.outputs()) text += output.text();
        });
    EXPECT_TRUE(status.ok()) << status;
  });
  FakeRequest& slow = engine_.WaitForRequest(0);
  slow.PushStart();
  first.WaitForNotification();
  std::string want;
  const std::string piece(64 << 10, 'x');
  while (!slow.stream->full()) {
    ASSERT_LT(want.size(), size_t{64} << 20) << "no back-pressure";
    slow.PushText(piece + std::to_string(want.size()));
    want += piece + std::to_string(want.size());
  }

  Call other(*client_, TextRequest("quick"));
  FakeRequest& quick = engine_.WaitForRequest(1);
  quick.PushText("not held up");
  quick.PushEnd();
  EXPECT_TRUE(other.Join().ok()) << other.Join();
  EXPECT_EQ(other.Text(), "not held up");

  may_read.Notify();
  slow.PushEnd();
  reader.join();
  EXPECT_TRUE(text == want) << text.size() << " bytes, expected " << want.size();
}

TEST_F(GenerateTest, EventsThatWaitedShareAMessage) {
  engine_.OnSubmit([](FakeRequest& fake) {
    for (int i = 0; i < 10; ++i) fake.PushText("x");
    fake.PushEnd();
  });
  Call call(*client_, TextRequest("a"));
  EXPECT_EQ(call.Text(), "xxxxxxxxxx");
  EXPECT_EQ(call.messages_, 1);
  ASSERT_THAT(call.outputs_, SizeIs(1));
  EXPECT_EQ(call.outputs_[0].token_ids_size(), 10);
}

TEST_F(GenerateTest, ChoicesAndPromptStayApart) {
  Call call(*client_, TextRequest("a"));
  FakeRequest& fake = engine_.WaitForRequest(0);
  TokenEvent echo{.text = "a"};
  echo.is_prompt = true;
  echo.token_ids = {'a'};
  TokenLogprob unpredicted{.token = 'a', .logprob = NAN, .text = "a"};
  echo.logprobs.push_back(unpredicted);
  fake.Push(echo);
  fake.PushText("zero", 0);
  fake.PushText("one", 1);
  fake.PushText("zero", 0);
  fake.PushEnd();
  EXPECT_EQ(call.Text(1), "one");
  EXPECT_TRUE(call.outputs_[0].is_prompt());
  EXPECT_FALSE(call.outputs_[0].logprobs(0).has_logprob());
  EXPECT_EQ(call.Text(0), "azerozero");
}

}  // namespace
}  // namespace mneme
