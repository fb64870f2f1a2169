// Requests to generate over HTTP, on their way to the engine: names, traces, and those that it
// never sees.
#include "server/openai/openai_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/status_payload.h"
#include "server/chat/chat_template.h"
#include "server/http/http_error.h"
#include "tests/server/http/raw_http_client.h"
#include "tests/server/openai/openai_service_harness.h"

namespace mneme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kTracedRequest[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kTraceFields[] =
    "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n"
    "tracestate: vendor=1\r\n";

TEST_F(OpenAiServiceTest, EveryPromptIsARequestInTheTraceOfItsCall) {
  Publish();
  RawHttpClient client(server_->port());
  client.SendRequest("POST", "/v1/completions", R"({"prompt": ["a", "b"], "max_tokens": 3})",
                     absl::StrCat("x-request-id: both\r\n", kTraceFields));
  for (int i = 0; i < 2; ++i) {
    FakeRequest& fake = engine_.WaitForRequest(i);
    EXPECT_EQ(fake.request.id, absl::StrCat("both-", i));
    EXPECT_EQ(fake.request.origin.api, "http");
    EXPECT_THAT(fake.request.origin.client, StartsWith("127.0.0.1:"));
    EXPECT_EQ(fake.request.origin.trace_id, kTracedRequest);
    EXPECT_EQ(fake.request.origin.span_id, engine_.WaitForRequest(0).request.origin.span_id);
    fake.PushStart();
    fake.PushEnd();
  }
  const RawResponse response = client.Read();
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.Field("x-request-id"), "both");
  EXPECT_EQ(response.Field("tracestate"), "vendor=1");
  EXPECT_EQ(response.Field("traceparent"),
            absl::StrCat("00-", kTracedRequest, "-",
                         engine_.WaitForRequest(0).request.origin.span_id, "-01"));
  EXPECT_EQ(Log(), "");  // the engine reports what it ran
}

TEST_F(OpenAiServiceTest, AFullSessionIsTheReasonOfALength) {
  Publish();
  for (const char* stream : {"false", "true"}) {
    for (const bool full : {false, true}) {
      const size_t number = engine_.requests();
      RawHttpClient client(server_->port());
      client.SendRequest(
          "POST", "/v1/completions",
          absl::StrCat(R"({"prompt": "a", "max_tokens": 3, "stream": )", stream, "}"));
      FakeRequest& fake = engine_.WaitForRequest(number);
      fake.PushStart();
      TokenEvent end{.text = "b", .token_ids = {98}};
      end.finish = FinishReason::kLength;
      end.context_full = full;
      end.is_last = true;
      fake.Push(end);
      const RawResponse response = client.Read();
      EXPECT_EQ(response.status, 200);
      EXPECT_THAT(response.body, HasSubstr(R"("finish_reason":"length")"));
      const auto says = HasSubstr(R"("context_full":true)");
      if (full) {
        EXPECT_THAT(response.body, says) << "stream: " << stream;
      } else {
        EXPECT_THAT(response.body, Not(HasSubstr("context_full"))) << "stream: " << stream;
      }
    }
  }
}

TEST_F(OpenAiServiceTest, APromptBeyondTheContextIsABadRequestWithItsNumbers) {
  Publish();
  engine_.OnSubmit([](FakeRequest& fake) {
    fake.PushEnd(WithReason(FieldError("text",
                                       "would feed 101 tokens to a session that was fed 0, "
                                       "expected at most 100 together (--max-context)"),
                            kReasonContextFull));
  });
  const RawResponse response = Ask("long", R"({"prompt": "a"})");
  EXPECT_EQ(response.status, 400);
  EXPECT_THAT(response.body,
              AllOf(HasSubstr(R"("code":"context_full")"), HasSubstr(R"("param":"prompt")"),
                    HasSubstr("prompt would feed 101 tokens"), HasSubstr("at most 100 together")));
}

TEST_F(OpenAiServiceTest, WantOfMemoryIsTheErrorOfOneCall) {
  Publish();
  engine_.OnSubmit([](FakeRequest&) { throw std::bad_alloc(); });
  const RawResponse refused = Ask("much", R"({"prompt": "a"})");
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.body, HasSubstr(R"("code":"out_of_memory")"));
  EXPECT_EQ(refused.Field("retry-after"), "1");
  EXPECT_EQ(Refused(absl::StatusCode::kResourceExhausted), 1);
  engine_.OnSubmit([](FakeRequest& fake) { fake.PushEnd(); });
  EXPECT_EQ(Ask("little", R"({"prompt": "a"})").status, 200);
}

TEST_F(OpenAiServiceTest, NoPromptOfAListBeginsWhereOneIsRefused) {
  Publish();
  const RawResponse unknown_token = Ask("token", R"({"prompt": [[1], [2, 999], [3]]})");
  EXPECT_EQ(unknown_token.status, 400);
  EXPECT_THAT(unknown_token.body, HasSubstr(R"("param":"prompt[1])"));
  const RawResponse empty = Ask("empty", R"({"prompt": ["a", "b", ""]})");
  EXPECT_EQ(empty.status, 400);
  EXPECT_THAT(empty.body, HasSubstr(R"("param":"prompt[2])"));
  EXPECT_EQ(Refused(absl::StatusCode::kInvalidArgument), 2) << "a call is refused once";
  EXPECT_EQ(engine_.requests(), 0u);
}

TEST_F(OpenAiServiceTest, NoPromptOfAListBeginsWhereNotAllCanWait) {
  engine_.set_rows(/*max_rows=*/2, /*max_queued_requests=*/3);
  Publish();
  const auto ask = [this](int prompts) {
    std::vector<std::string> all(prompts, "\"a\"");
    return Ask("many", absl::StrCat("{\"prompt\": [", absl::StrJoin(all, ","), "]}"));
  };
  engine_.OnSubmit([](FakeRequest& fake) { fake.PushEnd(); });
  EXPECT_EQ(ask(5).status, 200) << "two run, three wait";
  EXPECT_EQ(engine_.requests(), 5u);
  const RawResponse refused = ask(6);
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.body, HasSubstr("queue_full"));
  const auto with_choices = [this](int n) {
    return Ask("n", absl::StrCat(R"({"prompt": ["a", "b", "c", "d", "e"], "n": )", n, "}")).status;
  };
  EXPECT_EQ(with_choices(2), 429) << "one runs, four would wait";
  EXPECT_EQ(engine_.requests(), 5u);
  EXPECT_EQ(Ask("n", R"({"prompt": ["a", "b", "c", "d"], "n": 3})").status, 200)
      << "one of more choices than rows runs when no other does";
  engine_.stats_.requests_running.Set(2);
  engine_.stats_.requests_queued.Set(1);
  EXPECT_EQ(ask(3).status, 429);
  EXPECT_EQ(engine_.requests(), 9u);
  EXPECT_EQ(ask(2).status, 200);
}

TEST_F(OpenAiServiceTest, ARequestWithoutAValidTraceHasNone) {
  Publish();
  RawHttpClient client(server_->port());
  client.SendRequest("POST", "/v1/completions", R"({"prompt": "a"})", "traceparent: 00-x\r\n");
  EXPECT_EQ(engine_.WaitForRequest(0).request.origin.trace_id, "");
  engine_.WaitForRequest(0).PushEnd();
  EXPECT_EQ(client.Read().Field("traceparent"), "");
}

TEST_F(OpenAiServiceTest, WhatIsRefusedIsCountedLoggedAndTraced) {
  EXPECT_EQ(Ask("early", "{}").status, 503);
  Publish();
  EXPECT_EQ(Ask("no-json", "{\"secret").status, 400);
  EXPECT_EQ(Ask("no-field", R"({"prompt": "a", "secret": 1})").status, 400);
  const RawResponse other = Ask("other", R"({"prompt": "a", "model": "secret"})", kTraceFields);
  EXPECT_EQ(other.status, 404);
  EXPECT_THAT(other.Field("traceparent"), StartsWith(absl::StrCat("00-", kTracedRequest)));
  access_.SetDraining();
  EXPECT_EQ(Ask("late", R"({"prompt": "a"})").status, 503);

  const std::string log = Log();
  EXPECT_EQ(Refused(absl::StatusCode::kUnavailable), 2);
  EXPECT_EQ(Refused(absl::StatusCode::kInvalidArgument), 2);
  EXPECT_EQ(Refused(absl::StatusCode::kNotFound), 1);
  EXPECT_THAT(log, HasSubstr("id=no-json api=http client=127.0.0.1:"));
  EXPECT_THAT(log, HasSubstr("outcome=rejected code=INVALID_ARGUMENT reason=BAD_BODY"));
  EXPECT_THAT(log, HasSubstr("outcome=rejected code=INVALID_ARGUMENT reason=UNKNOWN_PARAMETER"));
  EXPECT_THAT(log, HasSubstr(absl::StrCat("id=other trace_id=", kTracedRequest, " span_id=")));
  EXPECT_THAT(log, HasSubstr("outcome=rejected code=UNAVAILABLE reason=LOADING"));
  EXPECT_THAT(log, HasSubstr("outcome=rejected code=UNAVAILABLE reason=DRAINING"));
  EXPECT_THAT(log, Not(HasSubstr("secret")));
  const std::vector<std::string> lines = absl::StrSplit(log, '\n', absl::SkipEmpty());
  EXPECT_EQ(lines.size(), 5u) << log;
}

TEST_F(OpenAiServiceTest, AnAnswerThatIsSentAgainSaysSoInAndOutsideOfSessions) {
  Publish();
  engine_.OnSubmit([](FakeRequest& fake) {
    TokenEvent end{.finish = FinishReason::kLength, .is_last = true};
    end.replayed = fake.request.idempotency_key == "twice";
    fake.Push(std::move(end));
  });
  for (const char* session : {"", R"(, "session_id": "s")"}) {
    const auto ask = [&](absl::string_view key) {
      return Ask("a",
                 absl::StrCat(R"({"prompt": "a", "idempotency_key": ")", key, "\"", session, "}"));
    };
    EXPECT_EQ(ask("once").Field("x-idempotent-replay"), "");
    EXPECT_EQ(ask("twice").Field("x-idempotent-replay"), "true");
  }
}

TEST_F(OpenAiServiceTest, SurpriseIsInTheUsageOfThoseWhoAsked) {
  Publish();
  // Several prompts have one: the mean over the tokens of all.
  engine_.OnSubmit([](FakeRequest& fake) {
    TokenEvent end{.finish = FinishReason::kLength, .is_last = true};
    end.usage.fed_tokens = static_cast<int64_t>(fake.request.prompt.at_start.size());
    if (fake.request.surprise) {
      end.usage.surprise = 10.0 * static_cast<double>(end.usage.fed_tokens);
    }
    fake.Push(std::move(end));
  });
  EXPECT_THAT(Ask("a", R"({"prompt": [[1], [2, 3, 4]], "surprise": true})").body,
              HasSubstr(R"("surprise":25.0)"));
  EXPECT_THAT(Ask("b", R"({"prompt": [[1], [2, 3, 4]]})").body, Not(HasSubstr("surprise")));
  EXPECT_THAT(Ask("c", R"({"prompt": [1], "surprise": true, "stream": true})").body,
              testing::AllOf(HasSubstr("stream_options.include_usage"), HasSubstr("\"surprise\"")));
  const RawResponse streamed = Ask("c", R"({"prompt": [5, 6], "surprise": true, "stream": true,
                                            "stream_options": {"include_usage": true}})");
  EXPECT_THAT(streamed.body, HasSubstr(R"("surprise":20.0)"));
}

TEST_F(OpenAiServiceTest, WhatAnAnswerDrewOnIsInTheUsageOfThoseWhoAsked) {
  Publish();
  engine_.OnSubmit([](FakeRequest& fake) {
    TokenEvent end{.finish = FinishReason::kLength, .is_last = true};
    end.usage.memory_evicted = fake.request.memory_use;
    if (fake.request.memory_use) {
      end.usage.memory_use = MemoryUse{.sources = {{.segment = 3,
                                                    .first_token = 30,
                                                    .end_token = 40,
                                                    .long_term = true,
                                                    .engrams = 4,
                                                    .weight = 1}},
                                       .evictions = 7};
    }
    fake.Push(std::move(end));
  });
  const std::string use =
      R"({"sources":[{"segment":3,"first_token":30,"end_token":40,"kind":"long_term","engrams":4,)"
      R"("weight":1.0}],"evictions":7})";
  const std::string one = Ask("a", R"({"prompt": [1], "memory_use": true})").body;
  EXPECT_THAT(one, HasSubstr("\"memory_evicted\":true"));
  EXPECT_THAT(one, HasSubstr("\"memory_use\":" + use));
  EXPECT_THAT(Ask("c", R"({"prompt": [1], "memory_use": true, "stream": true})").body,
              HasSubstr("stream_options.include_usage"));
  EXPECT_THAT(Ask("b", R"({"prompt": [[1], [2, 3]], "memory_use": true})").body,
              HasSubstr("\"memory_use\":[" + use + "," + use + "]"));
  EXPECT_THAT(Ask("c", R"({"prompt": [1]})").body, Not(HasSubstr("memory_")));
}

// Work that nobody waits for is given up inside of a template.
TEST_F(OpenAiServiceTest, ADeadlineEndsWhatComesBeforeTheEngine) {
  ServingFacts facts;
  facts.model_name = "served";
  facts.chat_template = *ChatTemplate::Parse(
      "{% for i in range(100000) %}{% for j in range(9) %}{{ i is divisibleby(3) }}{% endfor %}"
      "{% endfor %}",
      Json::object());
  access_.Publish(engine_, facts);
  constexpr char kBody[] = R"({"messages": [{"role": "user", "content": "a"}]})";
  RawHttpClient client(server_->port());
  client.SendRequest("POST", "/v1/chat/completions", kBody, "x-request-timeout-ms: 2\r\n");
  const RawResponse late = client.Read();
  EXPECT_EQ(late.status, 408) << late.body;
  RawHttpClient tokenizes(server_->port());
  tokenizes.SendRequest("POST", "/tokenize", kBody, "x-request-timeout-ms: 2\r\n");
  EXPECT_EQ(tokenizes.Read().status, 408);
  service_->AbandonTexts();
  RawHttpClient abandoned(server_->port());
  abandoned.SendRequest("POST", "/v1/chat/completions", kBody);
  EXPECT_EQ(abandoned.Read().status, 503);
  EXPECT_EQ(engine_.requests(), 0u);
}

TEST_F(OpenAiServiceTest, AnAnswerOfASessionThatIsGoneClaimsNone) {
  Publish();
  engine_.OnSubmit([](FakeRequest& fake) {
    TokenEvent end{.finish = FinishReason::kLength, .is_last = true};
    end.replayed = true;
    end.session_gone = true;
    end.session_position = 12;
    fake.Push(std::move(end));
  });
  const RawResponse whole = Ask("a", R"({"prompt": "a", "session_id": "s"})");
  EXPECT_EQ(whole.Field("x-session-gone"), "true");
  EXPECT_EQ(whole.Field("x-session-position"), "");
  EXPECT_THAT(whole.body, HasSubstr(R"("session":{"id":"s","gone":true})"));
  const RawResponse streamed = Ask("b", R"({"prompt": "a", "session_id": "s", "stream": true,
                                            "stream_options": {"include_usage": true}})");
  EXPECT_THAT(streamed.body, HasSubstr(R"("session":{"id":"s","gone":true})"));
}

TEST_F(OpenAiServiceTest, ABusySessionIsAConflictWhateverWasToBeDoneWithIt) {
  const absl::Status busy =
      WithReason(absl::FailedPreconditionError("session \"s\" is busy"), "SESSION_BUSY");
  EXPECT_EQ(HttpStatusOf(busy), 409);
  const HttpResponse response = ErrorResponse(busy);
  EXPECT_THAT(response.body, HasSubstr("conflict_error"));
  EXPECT_EQ(HttpStatusOf(absl::FailedPreconditionError("no chat template")), 412);
}

TEST_F(OpenAiServiceTest, WhatHttpItselfRefusesIsNoDifferent) {
  Publish();
  RawHttpClient no_length(server_->port());
  EXPECT_TRUE(no_length.Send("POST /v1/completions HTTP/1.1\r\nHost: a\r\n\r\n"));
  EXPECT_EQ(no_length.Read().status, 411);
  EXPECT_EQ(Ask("too-large", std::string(2000, ' ')).status, 413);
  RawHttpClient slow(server_->port());
  EXPECT_TRUE(
      slow.Send("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{"));
  EXPECT_EQ(slow.Read().status, 408);
  // Others are no requests to generate.
  RawHttpClient other(server_->port());
  other.SendRequest("POST", "/tokenize", "{");
  EXPECT_EQ(other.Read().status, 400);
  const std::string log = Log();
  EXPECT_EQ(Refused(absl::StatusCode::kInvalidArgument), 1);
  EXPECT_EQ(Refused(absl::StatusCode::kResourceExhausted), 1);
  EXPECT_EQ(Refused(absl::StatusCode::kDeadlineExceeded), 1);
  EXPECT_THAT(log, AllOf(HasSubstr("id=too-large api=http"), HasSubstr("outcome=deadline"),
                         HasSubstr("outcome=rejected code=INVALID_ARGUMENT")));
  const std::vector<std::string> lines = absl::StrSplit(log, '\n', absl::SkipEmpty());
  EXPECT_EQ(lines.size(), 3u) << log;
}

TEST_F(OpenAiServiceTest, WhatTheEngineRefusesItCountsItself) {
  Publish();
  engine_.RefuseWith(QueueFullError("full"));
  EXPECT_EQ(Ask("full", R"({"prompt": ["a", "b"]})").status, 429);
  EXPECT_EQ(Refused(absl::StatusCode::kResourceExhausted), 0);
  const std::string log = Log();
  EXPECT_THAT(log, HasSubstr("id=full-0 api=http"));
  EXPECT_THAT(log, HasSubstr("code=RESOURCE_EXHAUSTED reason=QUEUE_FULL"));
  EXPECT_THAT(log, Not(HasSubstr("id=full-1")));
}

class OpenAiLimitsTest : public OpenAiServiceTest {
 protected:
  static v1::SecuritySection TwoStreams() {
    v1::SecuritySection config;
    config.set_api_key("the-key");
    config.set_max_streams_per_key(2);
    config.set_max_priority_per_key(5);
    return config;
  }
  OpenAiLimitsTest() : OpenAiServiceTest(TwoStreams()) {}
};

TEST_F(OpenAiLimitsTest, APriorityThatTheKeyMayNotHaveIsForbidden) {
  Publish();
  const std::string key = "authorization: Bearer the-key\r\n";
  const RawResponse refused = Ask("first", R"({"prompt": "a", "priority": 6})", key);
  EXPECT_EQ(refused.status, 403);
  EXPECT_THAT(refused.body, AllOf(HasSubstr(R"("param":"priority")"), HasSubstr("5 at most")));
  EXPECT_EQ(engine_.requests(), 0u);
  EXPECT_EQ(security_->quotas().streams("api-key"), 0);
  engine_.OnSubmit([](FakeRequest& fake) { fake.PushEnd(); });
  EXPECT_EQ(Ask("second", R"({"prompt": "a", "priority": 5})", key).status, 200);
}

TEST_F(OpenAiLimitsTest, StrangersAndThoseOverTheirLimitHaveALine) {
  Publish();
  EXPECT_EQ(Ask("stranger", R"({"prompt": "a"})").status, 401);
  const std::string key = "authorization: Bearer the-key\r\n";
  const auto another =
      security_->quotas().BeginStream(security_->authenticator().CallerNamed("api-key"));
  ASSERT_TRUE(another.ok());
  EXPECT_EQ(Ask("two", R"({"prompt": ["a", "b"]})", key).status, 429);
  EXPECT_EQ(engine_.requests(), 0u) << "neither of them begins";
  EXPECT_EQ(security_->quotas().streams("api-key"), 1) << "the place of the first is free again";
  const std::string log = Log();
  EXPECT_EQ(Refused(absl::StatusCode::kUnauthenticated), 1);
  EXPECT_EQ(Refused(absl::StatusCode::kResourceExhausted), 1);
  EXPECT_THAT(log, HasSubstr("code=UNAUTHENTICATED reason=API_KEY_MISSING"));
  EXPECT_THAT(log, HasSubstr("id=two api=http"));
  EXPECT_THAT(log, HasSubstr("owner=api-key outcome=rejected code=RESOURCE_EXHAUSTED "
                             "reason=KEY_STREAM_LIMIT"));
  EXPECT_THAT(log, Not(HasSubstr("the-key")));
}

TEST_F(OpenAiLimitsTest, MorePromptsThanStreamsAreNeverBegun) {
  Publish();
  const std::string key = "authorization: Bearer the-key\r\n";
  const RawResponse answer = Ask("three", R"({"prompt": ["a", "b", "c"]})", key);
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(answer.body, HasSubstr("this key may have 2"));
}

}  // namespace
}  // namespace mneme
