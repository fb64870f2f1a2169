// Inference.Generate from the wire to the engine and back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "clients/cpp/error_details.h"
#include "tests/server/grpc/server_fixture.h"

namespace mneme {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

// One Generate on a thread of its own, with all that came.
class Call {
 public:
  Call(Client& client, v1::GenerateRequest request)
      : thread_([this, &client, request = std::move(request)] {
          status_ = client.Generate(
              request,
              [this](const v1::GenerateResponse& response) {
                if (response.has_started()) started_.push_back(response.started());
                if (response.has_finished()) finished_.push_back(response.finished());
                outputs_.insert(outputs_.end(), response.outputs().begin(),
                                response.outputs().end());
                messages_ += 1;
                if (!first_.HasBeenNotified()) first_.Notify();
              },
              &cancel_);
        }) {}
  ~Call() { Join(); }

  void WaitForFirstMessage() { first_.WaitForNotification(); }
  void Cancel() { cancel_.Cancel(); }
  const absl::Status& Join() {
    if (thread_.joinable()) thread_.join();
    return status_;
  }
  std::string Text(int choice = 0) {
    Join();
    std::string text;
    for (const v1::Output& output : outputs_) {
      if (output.choice() == choice) text += output.text();
    }
    return text;
  }

  std::vector<v1::Started> started_;
  std::vector<v1::Finished> finished_;
  std::vector<v1::Output> outputs_;
  int messages_ = 0;

 private:
  absl::Notification first_;
  CancelToken cancel_;
  absl::Status status_;
  std::thread thread_;
};

class GenerateTest : public ServerTest {
 protected:
  // The request that the engine is given for `request`.
  Request Converted(const v1::GenerateRequest& request) {
    Call call(*client_, request);
    FakeRequest& fake = engine_.WaitForRequest(count_++);
    fake.PushEnd();
    return fake.request;
  }
  absl::Status Refused(const v1::GenerateRequest& request) {
    return client_->Generate(request, [](const v1::GenerateResponse&) {});
  }

  size_t count_ = 0;
};

v1::GenerateRequest TextRequest(const std::string& text) {
  v1::GenerateRequest request;
  request.set_text(text);
  return request;
}

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

TEST_F(GenerateTest, EveryFieldReachesTheEngine) {
  v1::GenerateRequest request = TextRequest("ab");
  request.mutable_session()->set_name("s/1");
  request.mutable_session()->set_create_if_missing(false);
  request.mutable_session()->set_ttl_ms(5000);
  request.mutable_session()->set_memory_seed(0);
  v1::SamplingOptions& sampling = *request.mutable_sampling();
  sampling.set_temperature(0);
  sampling.set_top_p(0.25f);
  sampling.set_min_p(0.125f);
  sampling.set_repetition_penalty(1.5f);
  sampling.set_presence_penalty(-1);
  sampling.set_frequency_penalty(2);
  sampling.set_seed(0);
  (*sampling.mutable_logit_bias())[9] = -100;
  (*sampling.mutable_logit_bias())[3] = 1;
  v1::StoppingOptions& stopping = *request.mutable_stopping();
  stopping.set_max_tokens(20);
  stopping.set_min_tokens(3);
  stopping.set_ignore_eos(true);
  stopping.add_stop_token_ids(4);
  stopping.add_stop_strings("\n");
  stopping.set_include_stop_in_output(true);
  v1::ResponseOptions& response = *request.mutable_response();
  response.set_n(3);
  response.set_logprobs(0);
  response.set_prompt_logprobs(2);
  response.set_echo(true);
  response.set_skip_special_tokens(false);
  response.set_surprise(true);
  response.set_memory_use(true);
  request.set_expected_position(0);
  request.set_idempotency_key("key");
  request.set_priority(-5);

  const Request got = Converted(request);
  EXPECT_EQ(got.session.name, "s/1");
  EXPECT_EQ(got.session.owner, "");
  EXPECT_FALSE(got.create_session);
  EXPECT_EQ(got.session_ttl, absl::Seconds(5));
  EXPECT_EQ(got.memory_seed, 0u);
  EXPECT_EQ(got.sampling.temperature, 0);
  EXPECT_EQ(got.sampling.top_k, 5) << "the model's default";
  EXPECT_EQ(got.sampling.top_p, 0.25f);
  EXPECT_EQ(got.sampling.min_p, 0.125f);
  EXPECT_EQ(got.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(got.sampling.presence_penalty, -1);
  EXPECT_EQ(got.sampling.frequency_penalty, 2);
  EXPECT_EQ(got.sampling.seed, 0u);
  EXPECT_THAT(got.sampling.logit_bias, ElementsAre(Pair(3, 1), Pair(9, -100)));
  EXPECT_EQ(got.stop.max_tokens, 20);
  EXPECT_EQ(got.stop.min_tokens, 3);
  EXPECT_TRUE(got.stop.ignore_eos);
  EXPECT_THAT(got.stop.stop_token_ids, ElementsAre(4));
  EXPECT_THAT(got.stop.stop_strings, ElementsAre("\n"));
  EXPECT_TRUE(got.stop.include_stop_in_output);
  EXPECT_EQ(got.n, 3);
  EXPECT_EQ(got.logprobs, 0);
  EXPECT_EQ(got.prompt_logprobs, 2);
  EXPECT_TRUE(got.echo);
  EXPECT_FALSE(got.skip_special_tokens);
  EXPECT_TRUE(got.surprise);
  EXPECT_TRUE(got.memory_use);
  EXPECT_EQ(got.expected_position, 0);
  EXPECT_EQ(got.idempotency_key, "key");
  EXPECT_EQ(got.priority, -5);
  EXPECT_EQ(got.deadline, absl::InfiniteDuration());
  EXPECT_FALSE(got.detached);
}

TEST_F(GenerateTest, UnsetFieldsHaveTheirDefaults) {
  const Request got = Converted(TextRequest("ab"));
  EXPECT_EQ(got.session.name, "");
  EXPECT_TRUE(got.create_session);
  EXPECT_FALSE(got.memory_seed.has_value());
  EXPECT_EQ(got.sampling.temperature, 0.5f) << "the model's default";
  EXPECT_EQ(got.sampling.top_p, 1);
  EXPECT_FALSE(got.sampling.seed.has_value());
  EXPECT_EQ(got.stop.max_tokens, 99) << "the server's default";
  EXPECT_EQ(got.n, 1);
  EXPECT_EQ(got.logprobs, -1);
  EXPECT_EQ(got.prompt_logprobs, -1);
  EXPECT_TRUE(got.skip_special_tokens);
  EXPECT_FALSE(got.surprise);
  EXPECT_FALSE(got.memory_use);
  EXPECT_FALSE(got.expected_position.has_value());
  EXPECT_THAT(got.id, HasSubstr("req-"));
}

TEST_F(GenerateTest, TextIsReadBothAsABeginningAndAsAContinuation) {
  v1::GenerateRequest request = TextRequest("ab");
  request.mutable_session()->set_name("s");
  request.set_add_special_tokens(true);
  const Request with_bos = Converted(request);
  EXPECT_THAT(with_bos.prompt.at_start, ElementsAre(256, 'a', 'b'));
  EXPECT_THAT(with_bos.prompt.continued, ElementsAre('a', 'b'));
  request.set_add_special_tokens(false);
  EXPECT_THAT(Converted(request).prompt.at_start, ElementsAre('a', 'b'));
}

TEST_F(GenerateTest, TokenIdsAreFedAsTheyAre) {
  v1::GenerateRequest request;
  request.mutable_session()->set_name("s");
  for (const int id : {0, 256, 5}) request.mutable_token_ids()->add_ids(id);
  const Request got = Converted(request);
  EXPECT_THAT(got.prompt.at_start, ElementsAre(0, 256, 5));
  EXPECT_TRUE(got.prompt.same_everywhere);
  EXPECT_THAT(got.prompt.At(7), ElementsAre(0, 256, 5));
}

TEST_F(GenerateTest, SpecialTokensThatATextSpellsAreTokensUnlessTheyAreNotToBe) {
  v1::GenerateRequest request = TextRequest("a</s>b");
  request.mutable_session()->set_name("s");
  request.set_add_special_tokens(false);
  const Request parsed = Converted(request);
  EXPECT_THAT(parsed.prompt.at_start, ElementsAre('a', 257, 'b'));
  EXPECT_THAT(parsed.prompt.continued, ElementsAre('a', 257, 'b'));
  request.set_parse_special(false);
  const Request literal = Converted(request);
  EXPECT_THAT(literal.prompt.at_start, ElementsAre('a', '<', '/', 's', '>', 'b'));
  EXPECT_THAT(literal.prompt.continued, SizeIs(6));
  request = TextRequest("<s>a");  // as transformers: BOS is added whatever the text has
  EXPECT_THAT(Converted(request).prompt.at_start, ElementsAre(256, 256, 'a'));

  v1::TokenizeRequest tokenize;
  tokenize.set_text("a</s>");
  EXPECT_THAT(client_->Tokenize(tokenize)->token_ids(), ElementsAre(256, 'a', 257));
  tokenize.set_parse_special(false);
  EXPECT_THAT(client_->Tokenize(tokenize)->token_ids(), SizeIs(6));
}

TEST_F(GenerateTest, ASessionThatMustExistIsNotMade) {
  v1::GenerateRequest request = TextRequest("a");
  request.mutable_session()->set_must_exist(true);
  EXPECT_EQ(DetailsOf(Refused(request)).fields[0].field, "session.must_exist") << "has no name";
  request.mutable_session()->set_name("s");
  EXPECT_FALSE(Converted(request).create_session);
  request.mutable_session()->set_create_if_missing(false);
  EXPECT_FALSE(Converted(request).create_session);
  request.mutable_session()->set_create_if_missing(true);
  EXPECT_EQ(DetailsOf(Refused(request)).fields[0].field, "session.must_exist") << "contradicted";
}

TEST_F(GenerateTest, AnEmptyPromptHasNoTokensAtAll) {
  v1::GenerateRequest request = TextRequest("");
  request.mutable_session()->set_name("s");
  EXPECT_THAT(Converted(request).prompt.at_start, IsEmpty());
  request.clear_text();
  EXPECT_THAT(Converted(request).prompt.continued, IsEmpty());
}

TEST_F(GenerateTest, ALongTextIsTokenisedAsWell) {
  const std::string text(100000, 'x');
  EXPECT_THAT(Converted(TextRequest(text)).prompt.at_start, SizeIs(testing::Ge(text.size())));
}

TEST_F(GenerateTest, ATextOverTheLimitIsRefusedWithBothSizes) {
  const absl::Status status = Refused(TextRequest(std::string((2 << 20) + 1, 'x')));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("2097153"), HasSubstr("2097152"), HasSubstr("--max-text-size")));
}

TEST_F(GenerateTest, TheDeadlineOfTheCallReachesTheEngine) {
  const Client hasty({.target = target(), .timeout = absl::Minutes(10)});
  const absl::Duration before = clock_.Monotonic();
  Call call(const_cast<Client&>(hasty), TextRequest("a"));
  FakeRequest& fake = engine_.WaitForRequest(0);
  fake.PushEnd();
  EXPECT_GT(fake.request.deadline, before + absl::Minutes(9));
  EXPECT_LT(fake.request.deadline, clock_.Monotonic() + absl::Minutes(11));
}

TEST_F(GenerateTest, WhatOnlyTheWireCanSayWronglyIsRefused) {
  v1::GenerateRequest request = TextRequest("a");
  request.set_model("another");
  EXPECT_EQ(Refused(request).code(), absl::StatusCode::kNotFound);
  request.set_model("served");
  request.mutable_session()->set_ttl_ms(-2);
  EXPECT_THAT(DetailsOf(Refused(request)).fields[0].field, "session.ttl_ms");
  request.mutable_session()->Clear();
  request.mutable_response()->set_logprobs(-1);
  EXPECT_THAT(DetailsOf(Refused(request)).fields[0].field, "response.logprobs");
  EXPECT_EQ(Refused(request).message(), "response.logprobs is -1, expected 0 to 20");
  request.mutable_response()->set_logprobs(21);
  EXPECT_EQ(Refused(request).message(), "response.logprobs is 21, expected 0 to 20");
  request.mutable_response()->clear_logprobs();
  request.mutable_response()->set_prompt_logprobs(-1);
  EXPECT_EQ(Refused(request).message(), "response.prompt_logprobs is -1, expected 0 to 20");
  request.mutable_response()->Clear();
  request.set_detached(true);
  EXPECT_THAT(DetailsOf(Refused(request)).fields[0].field, "detached");
  request.set_detached(false);
  request.set_request_id("line\nbreak");
  EXPECT_THAT(DetailsOf(Refused(request)).fields[0].field, "request_id");
}

TEST_F(GenerateTest, AnUnsetMaxTokensIsWhatTheLimitLeaves) {
  engine_.set_max_request_tokens(50);
  v1::GenerateRequest request;
  for (int i = 0; i < 48; ++i) request.mutable_token_ids()->add_ids(i);
  EXPECT_EQ(Converted(request).stop.max_tokens, 2);
  request.mutable_token_ids()->add_ids(0);
  EXPECT_EQ(Converted(request).stop.max_tokens, 1);
  request.mutable_token_ids()->add_ids(0);
  const absl::Status status = Refused(request);
  EXPECT_EQ(status.message(),
            "token_ids has 50 tokens, expected at most 49: one less than the limit on prompt and "
            "answer together, 50 (--max-model-len)");
  EXPECT_EQ(DetailsOf(status).fields[0].field, "token_ids");
  request.mutable_stopping()->set_max_tokens(0);
  EXPECT_EQ(Converted(request).stop.max_tokens, 0) << "said, so the engine's business";
  engine_.set_max_request_tokens(1000);
  request.clear_stopping();
  EXPECT_EQ(Converted(request).stop.max_tokens, 99) << "the default fits";
}

TEST_F(GenerateTest, MinTokensBeyondAnUnsetMaxTokensIsRefusedWithBoth) {
  v1::GenerateRequest request = TextRequest("ab");
  request.mutable_stopping()->set_min_tokens(100);
  EXPECT_EQ(Refused(request).message(),
            "stopping.min_tokens is 100, expected 0 to max_tokens, which is not set and so 99, the "
            "server's "
            "default");
  engine_.set_max_request_tokens(50);
  request.mutable_stopping()->set_min_tokens(49);
  const absl::Status status = Refused(request);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("min_tokens is 49"), HasSubstr("--max-model-len")));
  EXPECT_EQ(DetailsOf(status).fields[0].field, "stopping.min_tokens");
  request.mutable_stopping()->set_min_tokens(40);
  EXPECT_EQ(Converted(request).stop.min_tokens, 40);
}

TEST_F(GenerateTest, TextNeedsATokenizer) {
  engine_.RemoveTokenizer();
  const absl::Status status = Refused(TextRequest("a"));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DetailsOf(status).reason, "NO_TOKENIZER");
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
