// Every RPC against a real server with a real, tiny model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "clients/cpp/error_details.h"
#include "tests/integration/running_server.h"
#include "tests/models/golden.h"

namespace mneme {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class ServingTest : public ::testing::Test {
 protected:
  Reply Generate(const v1::GenerateRequest& request) { return server_.Generate(request); }
  int64_t Position(const std::string& session) {
    const auto info = server_.client().GetSession(session);
    EXPECT_TRUE(info.ok()) << info.status();
    return info.ok() ? info->position() : -1;
  }
  absl::StatusOr<v1::Session> Fork(const std::string& source, const std::string& target) {
    v1::ForkSessionRequest request;
    request.set_source_name(source);
    request.set_target_name(target);
    return server_.client().ForkSession(request);
  }

  RunningServer server_;
};

TEST_F(ServingTest, GreedyTokensAreThoseOfTheReference) {
  const Golden golden = ReadGolden("mom");
  v1::GenerateRequest request = Greedy("", static_cast<int>(golden.greedy.size()));
  for (int i = 0; i < 16; ++i) request.mutable_token_ids()->add_ids(golden.input_ids[i]);
  const Reply answer = Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_THAT(answer.tokens, ElementsAreArray(golden.greedy));
  EXPECT_EQ(answer.finished.usage().prompt_tokens(), 16);
  EXPECT_EQ(answer.finished.usage().completion_tokens(), golden.greedy.size());
  EXPECT_EQ(answer.outputs.back().finish_reason(), v1::FINISH_REASON_LENGTH);
}

TEST_F(ServingTest, AContinuedSessionEqualsAFreshOne) {
  const Reply first = Generate(Greedy("The sea ", 10, "s"));
  ASSERT_TRUE(first.status.ok()) << first.status;
  const Reply second = Generate(Greedy(" and the land ", 10, "s"));
  ASSERT_TRUE(second.status.ok()) << second.status;
  EXPECT_EQ(second.started.resumed_tokens(), first.finished.session().position() - 1)
      << "all but the pending token";

  v1::GenerateRequest fresh = Greedy("", 10);
  for (const char c : std::string("The sea ")) fresh.mutable_token_ids()->add_ids(c);
  for (const int32_t id : first.tokens) fresh.mutable_token_ids()->add_ids(id);
  for (const char c : std::string(" and the land ")) fresh.mutable_token_ids()->add_ids(c);
  EXPECT_THAT(Generate(fresh).tokens, ElementsAreArray(second.tokens));
}

TEST_F(ServingTest, TokenIdsContinueASessionAsTextDoes) {
  ASSERT_TRUE(Generate(Greedy("The sea ", 10, "text")).status.ok());
  ASSERT_TRUE(Fork("text", "ids").ok());
  v1::GenerateRequest ids = Greedy("", 10, "ids");
  for (const char c : std::string(" and")) ids.mutable_token_ids()->add_ids(c);
  const Reply from_ids = Generate(ids);
  ASSERT_TRUE(from_ids.status.ok()) << from_ids.status;
  EXPECT_EQ(from_ids.finished.usage().prompt_tokens(), 1 + 4) << "the pending token, and the ids";
  EXPECT_THAT(Generate(Greedy(" and", 10, "text")).tokens, ElementsAreArray(from_ids.tokens));
}

TEST_F(ServingTest, SessionCommandsDoNotWaitForLongTexts) {
  // Each takes a while to read, and nobody waits for it any more.
  Client hasty({.target = server_.target(), .timeout = absl::Milliseconds(50)});
  for (int i = 0; i < 4; ++i) {
    (void)RunningServer::Generate(hasty, Greedy(std::string(2 << 20, 'x'), 1));
  }
  const absl::Time start = absl::Now();
  EXPECT_TRUE(server_.client().ListSessions({}).ok());
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

TEST_F(ServingTest, AnEmptyPromptGoesOnFromThePendingToken) {
  const Reply whole = Generate(Greedy("abc", 20));
  const Reply first = Generate(Greedy("abc", 12, "s"));
  EXPECT_TRUE(first.finished.session().has_pending_token());
  const Reply rest = Generate(Greedy("", 8, "s"));
  ASSERT_TRUE(rest.status.ok()) << rest.status;
  std::vector<int32_t> both = first.tokens;
  both.insert(both.end(), rest.tokens.begin(), rest.tokens.end());
  EXPECT_THAT(both, ElementsAreArray(whole.tokens));
}

TEST_F(ServingTest, AForkRemembersTheSameAndLeavesItsParentAlone) {
  ASSERT_TRUE(Generate(Greedy("once upon", 5, "parent")).status.ok());
  ASSERT_TRUE(Fork("parent", "child").ok());
  const Reply child = Generate(Greedy(" a time", 12, "child"));
  EXPECT_EQ(Position("parent"), 9 + 5);
  const Reply parent = Generate(Greedy(" a time", 12, "parent"));
  EXPECT_THAT(parent.tokens, ElementsAreArray(child.tokens));
  EXPECT_EQ(Fork("parent", "child").status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Fork("nobody", "x").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ServingTest, SessionsDoNotMix) {
  const Reply alone = Generate(Greedy("red ", 16, "a"));
  std::vector<std::thread> others;
  for (int i = 0; i < 8; ++i) {
    others.emplace_back(
        [this, i] { EXPECT_TRUE(Generate(Greedy("noise " + std::to_string(i), 40)).status.ok()); });
  }
  const Reply crowded = Generate(Greedy("red ", 16, "b"));
  for (std::thread& thread : others) thread.join();
  EXPECT_THAT(crowded.tokens, ElementsAreArray(alone.tokens));
}

TEST_F(ServingTest, ABusySessionIsNotSharedAndACancelLeavesWhatWasFed) {
  CancelToken cancel;
  absl::Notification running;
  Reply endless;
  std::thread first([&] {
    endless = RunningServer::Generate(server_.client(), Endless("s"), &running, &cancel);
  });
  running.WaitForNotification();
  const absl::Status busy = Generate(Greedy("me too", 1, "s")).status;
  EXPECT_EQ(busy.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(DetailsOf(busy).reason, "SESSION_BUSY");
  EXPECT_EQ(server_.client().DeleteSession("s").code(), absl::StatusCode::kFailedPrecondition);
  cancel.Cancel();
  first.join();
  EXPECT_EQ(endless.status.code(), absl::StatusCode::kCancelled);

  // The loop hears of the cancellation a moment after the client does.
  absl::StatusOr<v1::Session> info = server_.client().GetSession("s");
  while (info.ok() && info->busy()) info = server_.client().GetSession("s");
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_GE(info->position(), static_cast<int64_t>(9 + endless.tokens.size()));

  // The session holds the same as a fresh one that was fed the same.
  const int64_t generated = info->position() - 9;
  const Reply same = Generate(Greedy("on and on", static_cast<int>(generated)));
  v1::GenerateRequest fresh = Greedy("", 8);
  for (const char c : std::string("on and on")) fresh.mutable_token_ids()->add_ids(c);
  for (const int32_t id : same.tokens) fresh.mutable_token_ids()->add_ids(id);
  for (const char c : std::string(" then")) fresh.mutable_token_ids()->add_ids(c);
  EXPECT_THAT(Generate(Greedy(" then", 8, "s")).tokens, ElementsAreArray(Generate(fresh).tokens));
}

TEST_F(ServingTest, ADeadlineEndsTheRequestAndTheSessionGoesOn) {
  Reply late;
  std::string session;
  // As much time as it takes to be given a token.
  for (absl::Duration timeout = absl::Milliseconds(250); late.tokens.empty(); timeout *= 2) {
    Client hasty({.target = server_.target(), .timeout = timeout});
    session = absl::StrCat("s", absl::ToInt64Milliseconds(timeout));
    late = RunningServer::Generate(hasty, Endless(session));
    ASSERT_EQ(late.status.code(), absl::StatusCode::kDeadlineExceeded);
  }
  absl::StatusOr<v1::Session> info = server_.client().GetSession(session);
  while (info.ok() && info->busy()) info = server_.client().GetSession(session);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_GE(info->position(), static_cast<int64_t>(late.tokens.size()));
  EXPECT_TRUE(Generate(Greedy(" again", 3, session)).status.ok());
}

TEST_F(ServingTest, ARetryWithTheSameKeyIsReplayedAndFeedsNothing) {
  v1::GenerateRequest request = Greedy("only once", 6, "s");
  request.set_idempotency_key("key-1");
  const Reply first = Generate(request);
  const Reply again = Generate(request);
  ASSERT_TRUE(again.status.ok()) << again.status;
  EXPECT_FALSE(first.finished.replayed());
  EXPECT_TRUE(again.finished.replayed());
  EXPECT_EQ(again.text, first.text);
  EXPECT_THAT(again.tokens, ElementsAreArray(first.tokens));
  EXPECT_EQ(Position("s"), first.finished.session().position());
  EXPECT_EQ(again.finished.session().position(), Position("s"));
  EXPECT_FALSE(again.finished.session_gone());

  ASSERT_EQ(server_.client().DeleteSession("s"), absl::OkStatus());
  const Reply late = Generate(request);
  ASSERT_TRUE(late.status.ok()) << late.status;
  EXPECT_EQ(late.text, first.text);
  EXPECT_TRUE(late.finished.session_gone());
  EXPECT_FALSE(late.finished.has_session());
}

TEST_F(ServingTest, AnUnexpectedPositionFeedsNothingAndIsTold) {
  const int64_t position = Generate(Greedy("start", 4, "s")).finished.session().position();
  v1::GenerateRequest request = Greedy("more", 4, "s");
  request.set_expected_position(position - 1);
  const absl::Status status = Generate(request).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(DetailsOf(status).metadata.at("position"), std::to_string(position));
  EXPECT_EQ(Position("s"), position);
  request.set_expected_position(position);
  EXPECT_TRUE(Generate(request).status.ok());
}

TEST_F(ServingTest, ALegalFieldCostsNoSession) {
  const int64_t position = Generate(Greedy("start", 4, "s")).finished.session().position();
  v1::GenerateRequest request = Greedy(" more", 4, "s");
  request.mutable_sampling()->set_repetition_penalty(1e-38f);
  const Reply answer = Generate(request);
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.tokens.size(), 4u);
  EXPECT_EQ(Position("s"), position + 9);
}

TEST_F(ServingTest, NobodyGoesFirstUnlessTheServerLetsHim) {
  v1::GenerateRequest request = Greedy("me first", 2);
  request.set_priority(1);
  const absl::Status status = Generate(request).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  ASSERT_EQ(DetailsOf(status).fields.size(), 1u);
  EXPECT_EQ(DetailsOf(status).fields[0].field, "priority");
  request.set_priority(-1);
  EXPECT_TRUE(Generate(request).status.ok());
}

TEST_F(ServingTest, ADetachedRequestFinishesWithoutItsClient) {
  v1::GenerateRequest request = Greedy("far away", 300, "s");
  request.set_detached(true);
  request.set_idempotency_key("later");
  CancelToken cancel;
  absl::Notification running;
  std::thread leaver(
      [&] { (void)RunningServer::Generate(server_.client(), request, &running, &cancel); });
  running.WaitForNotification();
  cancel.Cancel();
  leaver.join();
  const Reply answer = Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_THAT(answer.tokens, SizeIs(300));
  EXPECT_TRUE(answer.finished.replayed());
}

TEST_F(ServingTest, SeedsRepeatAndChoicesDiffer) {
  v1::GenerateRequest request = Greedy("dice", 24);
  request.mutable_sampling()->set_temperature(1.5);
  request.mutable_sampling()->set_seed(7);
  request.mutable_response()->set_n(3);
  const auto texts = [](const Reply& answer) {
    std::vector<std::string> result(3);
    for (const v1::Output& output : answer.outputs) result[output.choice()] += output.text();
    return result;
  };
  const Reply first = Generate(request);
  ASSERT_TRUE(first.status.ok()) << first.status;
  EXPECT_EQ(first.finished.seed(), 7);
  EXPECT_EQ(first.finished.usage().completion_tokens(), 72);
  EXPECT_EQ(texts(first), texts(Generate(request)));
  EXPECT_NE(texts(first)[0], texts(first)[1]);
  request.mutable_sampling()->clear_seed();
  EXPECT_NE(Generate(request).finished.seed(), Generate(request).finished.seed());
}

TEST_F(ServingTest, StopStringsEndTheTextWhereTheyBegin) {
  v1::GenerateRequest request = Greedy("x", 40);
  for (int byte = 0; byte < 256; ++byte) {  // printable text only, so that it can be cut anywhere
    if (byte < 0x20 || byte >= 0x7f)
      (*request.mutable_sampling()->mutable_logit_bias())[byte] = -100;
  }
  const std::string whole = Generate(request).text;
  ASSERT_EQ(whole.size(), 40u);
  const std::string stop = whole.substr(6, 3);
  request.mutable_stopping()->add_stop_strings(stop);
  const Reply answer = Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.text, whole.substr(0, whole.find(stop)));
  EXPECT_EQ(answer.outputs.back().finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(answer.outputs.back().stop_matched(), stop);
}

TEST_F(ServingTest, LogprobsAndEchoCoverPromptAndAnswer) {
  v1::GenerateRequest request = Greedy("abc", 4);
  request.mutable_response()->set_logprobs(2);
  request.mutable_response()->set_prompt_logprobs(1);
  request.mutable_response()->set_echo(true);
  const Reply answer = Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  std::string prompt;
  int prompt_logprobs = 0;
  int logprobs = 0;
  for (const v1::Output& output : answer.outputs) {
    if (output.is_prompt()) {
      prompt += output.text();
      for (const v1::TokenLogprob& token : output.logprobs()) {
        EXPECT_EQ(token.has_logprob(), prompt_logprobs > 0) << "nothing predicts the first token";
        prompt_logprobs += 1;
      }
      continue;
    }
    for (const v1::TokenLogprob& token : output.logprobs()) {
      EXPECT_LE(token.logprob(), 0);
      EXPECT_THAT(token.top(), SizeIs(2));
      EXPECT_EQ(token.top(0).token_id(), token.token_id()) << "greedy takes the most likely";
      logprobs += 1;
    }
  }
  EXPECT_EQ(prompt, "abc");
  EXPECT_EQ(prompt_logprobs, 3);
  EXPECT_EQ(logprobs, 4);
}

TEST_F(ServingTest, EachBadFieldIsNamedAndTheServerLives) {
  struct Case {
    const char* field;
    void (*spoil)(v1::GenerateRequest&);
  };
  const Case cases[] = {
      {"temperature", [](auto& r) { r.mutable_sampling()->set_temperature(-1); }},
      {"temperature", [](auto& r) { r.mutable_sampling()->set_temperature(NAN); }},
      {"top_k", [](auto& r) { r.mutable_sampling()->set_top_k(-1); }},
      {"top_p", [](auto& r) { r.mutable_sampling()->set_top_p(0); }},
      {"top_p", [](auto& r) { r.mutable_sampling()->set_top_p(1.5); }},
      {"min_p", [](auto& r) { r.mutable_sampling()->set_min_p(2); }},
      {"repetition_penalty", [](auto& r) { r.mutable_sampling()->set_repetition_penalty(0); }},
      {"presence_penalty", [](auto& r) { r.mutable_sampling()->set_presence_penalty(3); }},
      {"frequency_penalty", [](auto& r) { r.mutable_sampling()->set_frequency_penalty(-3); }},
      {"logit_bias", [](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[256] = 1; }},
      {"logit_bias", [](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[1] = 101; }},
      {"max_tokens", [](auto& r) { r.mutable_stopping()->set_max_tokens(-1); }},
      {"min_tokens", [](auto& r) { r.mutable_stopping()->set_min_tokens(99); }},
      {"stop_token_ids", [](auto& r) { r.mutable_stopping()->add_stop_token_ids(-1); }},
      {"stop_strings", [](auto& r) { r.mutable_stopping()->add_stop_strings(""); }},
      {"stop_strings",
       [](auto& r) { r.mutable_stopping()->add_stop_strings(std::string(257, 'x')); }},
      {"n", [](auto& r) { r.mutable_response()->set_n(0); }},
      {"n", [](auto& r) { r.mutable_response()->set_n(129); }},
      {"logprobs", [](auto& r) { r.mutable_response()->set_logprobs(21); }},
      {"prompt_logprobs", [](auto& r) { r.mutable_response()->set_prompt_logprobs(21); }},
      {"session.name", [](auto& r) { r.mutable_session()->set_name("a b"); }},
      {"session.name", [](auto& r) { r.mutable_session()->set_name(std::string(129, 'x')); }},
      {"ttl", [](auto& r) { r.mutable_session()->set_ttl_ms(-2); }},
      {"expected_position", [](auto& r) { r.set_expected_position(-1); }},
      {"idempotency_key", [](auto& r) { r.set_idempotency_key(std::string(129, 'x')); }},
      {"priority", [](auto& r) { r.set_priority(1001); }},
      {"text", [](auto& r) { r.clear_prompt(); }},
      {"text", [](auto& r) { r.set_text(""); }},
      {"token_ids", [](auto& r) { r.mutable_token_ids()->clear_ids(); }},
      {"token_ids.ids[1]",
       [](auto& r) {
         r.mutable_token_ids()->add_ids(1);
         r.mutable_token_ids()->add_ids(256);
       }},
      {"token_ids.ids[0]", [](auto& r) { r.mutable_token_ids()->add_ids(-1); }},
  };
  for (const Case& bad : cases) {
    v1::GenerateRequest request = Greedy("ok", 2);
    bad.spoil(request);
    const absl::Status status = Generate(request).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.field << ": " << status;
    const ErrorDetails details = DetailsOf(status);
    ASSERT_THAT(details.fields, SizeIs(1)) << status;
    EXPECT_THAT(details.fields[0].field, HasSubstr(bad.field));
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.field));
  }
  EXPECT_TRUE(Generate(Greedy("still there", 2)).status.ok());
}

TEST_F(ServingTest, ManyStreamsAtOnceShareTheSteps) {
  constexpr int kStreams = 64;
  // How many meet in a step depends on how fast they come; some will.
  for (double mean_rows = 0; mean_rows <= 4;) {
    absl::Mutex mu;
    int done = 0;
    std::vector<absl::Status> errors;
    const v1::Histogram before = server_.client().GetInfo()->statistics().decode_rows();
    for (int i = 0; i < kStreams; ++i) {
      server_.client().GenerateAsync(
          Greedy("stream " + std::to_string(i), 50), [](const v1::GenerateResponse&) {},
          [&](const absl::Status& status) {
            absl::MutexLock lock(&mu);
            done += 1;
            if (!status.ok()) errors.push_back(status);
          });
    }
    absl::MutexLock lock(&mu);
    const auto all = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu) { return done == kStreams; };
    mu.Await(absl::Condition(&all));
    ASSERT_THAT(errors, IsEmpty());
    const v1::Histogram rows = server_.client().GetInfo()->statistics().decode_rows();
    mean_rows = (rows.sum() - before.sum()) / static_cast<double>(rows.count() - before.count());
  }
}

}  // namespace
}  // namespace mneme
