// Requests to generate over HTTP, on their way to the engine: names, traces, and those that it
// never sees.
#include "server/openai/openai_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "engine/status_payload.h"
#include "server/chat/chat_template.h"
#include "server/http/http_error.h"
#include "server/http/http_guard.h"
#include "server/openai/session_routes.h"
#include "server/requests/session_transfers.h"
#include "tests/server/fake_engine.h"
#include "tests/server/http/raw_http_client.h"

namespace mneme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::internal::CaptureStderr;
using ::testing::internal::GetCapturedStderr;

constexpr char kTracedRequest[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kTraceFields[] =
    "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n"
    "tracestate: vendor=1\r\n";

class OpenAiServiceTest : public ::testing::Test {
 protected:
  explicit OpenAiServiceTest(const v1::SecuritySection& config = {}) {
    CaptureStderr();
    access_.set_request_log(log_.get());
    SecurityFailure failure;
    security_ = *Security::Create(config, clock_, failure);
    service_ = std::make_unique<OpenAiService>(access_, *security_);
    Start(absl::Milliseconds(200));
  }
  void Start(absl::Duration body_timeout) {
    server_.reset();
    HttpRoutes routes;
    service_->AddRoutes(routes);
    sessions_.AddRoutes(routes);
    HttpServerOptions options;
    options.port = 0;
    options.limits.max_body_bytes = 1000;
    options.body_timeout = body_timeout;
    options.on_exchange = [this](const HttpExchange& e) { service_->OnExchange(e); };
    GuardHttp(*security_, options);
    server_ = *HttpServer::Start(options, std::move(routes));
  }
  ~OpenAiServiceTest() override {
    if (log_ != nullptr) Log();
  }

  void Publish() {
    ServingFacts facts;
    facts.model_name = "served";
    access_.Publish(engine_, facts);
  }
  RawResponse Ask(absl::string_view id, absl::string_view body, absl::string_view fields = "") {
    RawHttpClient client(server_->port());
    client.SendRequest("POST", "/v1/completions", body,
                       absl::StrCat("x-request-id: ", id, "\r\n", fields));
    return client.Read();
  }
  int64_t Refused(absl::StatusCode code) {
    return access_.stats().refused[static_cast<size_t>(code)].value();
  }
  // Everything that was logged, once the server has ended and counted all that it answered.
  std::string Log() {
    server_ = nullptr;
    service_ = nullptr;
    access_.set_request_log(nullptr);
    log_ = nullptr;
    return GetCapturedStderr();
  }

  RealClock clock_;
  EngineAccess access_{clock_};
  SessionRoutes sessions_{access_};
  std::unique_ptr<RequestLog> log_ =
      std::make_unique<RequestLog>(RequestLog::Which::kAll, access_.stats());
  std::unique_ptr<Security> security_;
  FakeEngine engine_;
  std::unique_ptr<OpenAiService> service_;
  std::unique_ptr<HttpServer> server_;
};

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

TEST_F(OpenAiServiceTest, AViewOfASessionsMemoryIsJson) {
  Publish();
  const auto get = [this](absl::string_view target) {
    RawHttpClient client(server_->port());
    client.SendRequest("GET", target);
    return client.Read();
  };
  ASSERT_TRUE(engine_.CreateSession({"", "a/b"}, absl::ZeroDuration()).ok());
  ASSERT_TRUE(engine_.CreateSession({"", "a/b/memory"}, absl::ZeroDuration()).ok());
  engine_.set_report(MemoryReport{
      .summary = {.position = 30, .working = 1},
      .engrams = {{.engram = {.birth = 3, .type = EngramType::kShortTerm}, .source = {1, 10, 20}}},
      .edges = {{.from = 3, .to = 4, .count = 2, .weight = 0.5, .weight_back = 1}}});
  const RawResponse engrams =
      get("/v1/sessions/a/b/memory?view=engrams&order=gain&kind=short_term&limit=7");
  EXPECT_EQ(engrams.status, 200) << engrams.body;
  EXPECT_THAT(
      engrams.body,
      AllOf(StartsWith(R"({"object":"memory","session_id":"a/b","summary":{"position":30,)"),
            HasSubstr(R"("engrams":[{"birth":3,"kind":"short_term")"),
            HasSubstr(R"("source":{"segment":1,"first_token":10,"end_token":20}}])"),
            Not(HasSubstr("edges"))));
  EXPECT_EQ(engine_.memory_queries().back().engrams->order, EngramsQuery::Order::kGain);
  EXPECT_EQ(engine_.memory_queries().back().engrams->kind, EngramType::kShortTerm);
  EXPECT_EQ(engine_.memory_queries().back().engrams->limit, 7);
  const RawResponse edges =
      get("/v1/sessions/a/b/memory?view=edges&birth=0&min_weight=0.25&min_count=2");
  EXPECT_THAT(edges.body,
              HasSubstr(R"("edges":[{"from":3,"to":4,"count":2,"weight":0.5,"weight_back":1.0}])"));
  EXPECT_EQ(engine_.memory_queries().back().edges->birth, 0u);
  EXPECT_EQ(engine_.memory_queries().back().edges->min_weight, 0.25);
  EXPECT_EQ(engine_.memory_queries().back().edges->min_count, 2);
  EXPECT_THAT(
      get("/v1/sessions/a/b/memory?view=histogram&quantity=age&bins=3&logarithmic=true").body,
      HasSubstr(R"("histogram":[])"));
  EXPECT_TRUE(engine_.memory_queries().back().histogram->logarithmic);
  EXPECT_THAT(get("/v1/sessions/a/b/memory?view=contiguity&max_distance=3").body,
              HasSubstr(R"("contiguity":[])"));
  EXPECT_THAT(get("/v1/sessions/a/b%2Fmemory").body, HasSubstr(R"("object":"session")"));

  for (const auto& [query, message] : {std::pair("", "view is missing, expected summary"),
                                       {"view=all", "view is \\\"all\\\", expected summary"},
                                       {"view=summary&limit=3", "limit is unknown, expected view"},
                                       {"view=edges&limit=20001", "a number from 1 to 20000"},
                                       {"view=engrams&limit=x", "a number from 1 to 10000"},
                                       {"view=edges&min_weight=nan", "a number from 0 to 1"},
                                       {"view=edges&birth=4294967296", "birth is "},
                                       {"view=histogram&bins=0", "bins is "},
                                       {"view=histogram&quantity=norm", "lifespan, age, creation"},
                                       {"view=contiguity&max_distance=-1", "max_distance is "},
                                       {"view=engrams&view=edges", "view"}}) {
    const RawResponse refused = get(absl::StrCat("/v1/sessions/a/b/memory?", query));
    EXPECT_EQ(refused.status, 400) << query;
    EXPECT_THAT(refused.body, HasSubstr(message)) << query;
  }
  EXPECT_EQ(get("/v1/sessions/nobody/memory?view=summary").status, 404);
  engine_.set_report(WithReason(absl::UnimplementedError("of one piece"), kReasonWrongKind));
  EXPECT_EQ(get("/v1/sessions/a/b/memory?view=summary").status, 501);
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

TEST_F(OpenAiServiceTest, SessionsForgetSegments) {
  Publish();
  const auto post = [&](const std::string& path, const std::string& body) {
    RawHttpClient client(server_->port());
    client.SendRequest("POST", "/v1/sessions" + path, body);
    return client.Read();
  };
  ASSERT_EQ(post("", R"({"session_id": "a/b"})").status, 200);
  const RawResponse done = post("/a/b/forget_segments", R"({"first": 2, "end": 5})");
  EXPECT_EQ(done.status, 200);
  EXPECT_EQ(done.body, R"({"id":"a/b","object":"session.segments_forgotten","working":3,)"
                       R"("short_term":2,"long_term":0,"dropped_checkpoints":["dinner"]})");
  EXPECT_EQ(post("/c/forget_segments", R"({"first": 2, "end": 5})").status, 404);
  EXPECT_EQ(post("/a/b", R"({"first": 2, "end": 5})").status, 404);
  const RawResponse missing = post("/a/b/forget_segments", R"({"first": 2})");
  EXPECT_EQ(missing.status, 400);
  EXPECT_THAT(missing.body, HasSubstr("end"));
  EXPECT_EQ(post("/a/b/forget_segments", R"({"first": 2, "end": "5"})").status, 400);
  EXPECT_EQ(post("/a/b/forget_segments", R"({"first": 2, "end": 5, "till": 6})").status, 400);
}

TEST_F(OpenAiServiceTest, SessionsBringASeed) {
  Publish();
  const auto ask = [&](const std::string& method, const std::string& path,
                       const std::string& body = "") {
    RawHttpClient client(server_->port());
    client.SendRequest(method, "/v1/sessions" + path, body);
    return client.Read();
  };
  const std::string body = R"({"session_id": "a", "memory_seed": 18446744073709551615})";
  const std::string seed = R"("memory_seed":18446744073709551615,)";
  EXPECT_THAT(ask("POST", "", body).body, HasSubstr(seed));
  EXPECT_THAT(ask("GET", "/a").body, HasSubstr(seed));
  // Readers whose numbers are doubles send and get it as a text.
  EXPECT_THAT(ask("GET", "/a").body, HasSubstr(R"("memory_seed_text":"18446744073709551615")"));
  for (const char* exact : {"18446744073709551614", "9007199254740993", "0"}) {
    const std::string name = absl::StrCat("of", exact);
    const RawResponse made =
        ask("POST", "",
            absl::StrCat(R"({"session_id": ")", name, R"(", "memory_seed": ")", exact, "\"}"));
    EXPECT_EQ(made.status, 200) << made.body;
    EXPECT_THAT(ask("GET", absl::StrCat("/", name)).body,
                AllOf(HasSubstr(absl::StrCat("\"memory_seed\":", exact, ",")),
                      HasSubstr(absl::StrCat("\"memory_seed_text\":\"", exact, "\""))));
  }
  EXPECT_THAT(ask("POST", "", R"({"session_id": "b"})").body, HasSubstr("\"memory_seed\":null,"));
  const RawResponse negative = ask("POST", "", R"({"session_id": "c", "memory_seed": -1})");
  EXPECT_EQ(negative.status, 400);
  EXPECT_THAT(negative.body, HasSubstr("2^64 - 1"));
  for (const char* large : {"18446744073709551616", "18446744073709551617", "1e40"}) {
    const RawResponse refused =
        ask("POST", "", absl::StrCat(R"({"session_id": "c", "memory_seed": )", large, "}"));
    EXPECT_EQ(refused.status, 400);
    EXPECT_THAT(refused.body, HasSubstr("memory_seed is 2^64 or more, expected an integer"));
  }
  const RawResponse fork =
      ask("POST", "", R"({"session_id": "c", "fork_of": "a", "memory_seed": 5})");
  EXPECT_EQ(fork.status, 400);
  EXPECT_THAT(fork.body, HasSubstr("memory_seed"));
}

TEST_F(OpenAiServiceTest, SessionsGoBack) {
  Publish();
  const auto ask = [&](const std::string& method, const std::string& path,
                       const std::string& body = "") {
    RawHttpClient client(server_->port());
    client.SendRequest(method, "/v1/sessions" + path, body);
    return client.Read();
  };
  ASSERT_EQ(ask("POST", "", R"({"session_id": "a/b"})").status, 200);
  engine_.SetPosition({"", "a/b"}, 9);
  const RawResponse made = ask("POST", "/a/b/checkpoints", R"({"name": "c"})");
  EXPECT_EQ(made.status, 200);
  EXPECT_EQ(made.body, R"({"id":"c","object":"session.checkpoint","session_id":"a/b","position":9,)"
                       R"("has_pending_token":true,"created_at":100})");
  EXPECT_THAT(ask("POST", "/a/b/checkpoints").body, HasSubstr("\"id\":\"checkpoint-"));
  EXPECT_THAT(ask("GET", "/a/b/checkpoints").body, HasSubstr(made.body));
  ASSERT_EQ(ask("POST", "", R"({"session_id": "a/b/checkpoints"})").status, 200);
  EXPECT_THAT(ask("GET", "/a/b/checkpoints").body, HasSubstr(made.body));
  for (const char* path : {"/a/b/checkpoints", "/a/b/checkpoints?nmae=c", "/a%2Fb/checkpoints"}) {
    const RawResponse nameless = ask("DELETE", path);
    EXPECT_EQ(nameless.status, 400) << path;
    EXPECT_THAT(nameless.body, HasSubstr("name is missing")) << path;
  }
  EXPECT_EQ(ask("DELETE", "/a/b/checkpoints?name=").status, 400);
  EXPECT_EQ(ask("POST", "/a/b/checkpoints", R"({"name": ""})").status, 400);
  // The session that is called so is named with the slash in other words.
  EXPECT_THAT(ask("GET", "/a/b%2fcheckpoints").body, HasSubstr(R"("id":"a/b/checkpoints")"));
  EXPECT_EQ(ask("DELETE", "/a%2Fb%2Fcheckpoints").status, 200);
  EXPECT_EQ(ask("GET", "/a/b%2Fcheckpoints").status, 404);
  engine_.SetPosition({"", "a/b"}, 20);

  EXPECT_THAT(ask("POST", "", R"({"session_id": "f", "fork_of": "a/b", "fork_position": 11})").body,
              HasSubstr("\"position\":11"));
  EXPECT_THAT(
      ask("POST", "", R"({"session_id": "g", "fork_of": "a/b", "fork_checkpoint": "c"})").body,
      HasSubstr("\"position\":9"));
  EXPECT_EQ(ask("POST", "", R"({"session_id": "h", "fork_position": 11})").status, 400);
  EXPECT_THAT(ask("POST", "/a/b/rewind", R"({"position": 15})").body, HasSubstr("\"position\":15"));
  EXPECT_THAT(ask("POST", "/a/b/rewind", R"({"checkpoint": "c"})").body,
              HasSubstr("\"position\":9"));
  const RawResponse gone = ask("POST", "/a/b/rewind", R"({"position": 10})");
  EXPECT_EQ(gone.status, 400);
  EXPECT_THAT(gone.body, HasSubstr("position_gone"));
  for (const std::string field : {"position", "fork_position"}) {
    const RawResponse below = field == "position"
                                  ? ask("POST", "/a/b/rewind", R"({"position": -1})")
                                  : ask("POST", "", R"({"fork_of": "a/b", "fork_position": -1})");
    EXPECT_EQ(below.status, 400);
    EXPECT_THAT(below.body, HasSubstr(absl::StrCat("\"param\":\"", field, "\"")));
    EXPECT_THAT(below.body, HasSubstr(absl::StrCat("\"", field, " is -1, expected 0")));
    EXPECT_THAT(below.body, HasSubstr("bad_field"));
  }
  EXPECT_EQ(ask("POST", "/a/b/rewind", "{}").status, 400);
  EXPECT_EQ(ask("POST", "/a/b/rewind", R"({"position": 1, "checkpoint": "c"})").status, 400);
  EXPECT_EQ(ask("POST", "/nobody/rewind", R"({"position": 1})").status, 404);
  EXPECT_EQ(ask("DELETE", "/a/b/checkpoints?name=c").status, 200);
  EXPECT_EQ(ask("DELETE", "/a/b/checkpoints?name=c").status, 404);
}

TEST_F(OpenAiServiceTest, SessionsGoOutAsFilesAndComeBack) {
  Publish();
  engine_.set_file_numbers(1 << 19);
  const auto ask = [&](const std::string& method, const std::string& path,
                       const std::string& body = "") {
    RawHttpClient client(server_->port());
    client.SendRequest(method, "/v1/sessions" + path, body);
    return client.Read();
  };
  ASSERT_EQ(ask("POST", "", R"({"session_id": "a/export"})").status, 200);
  EXPECT_EQ(ask("GET", "/a%2Fexport").status, 200) << "a session of that name";
  const RawResponse formless = ask("GET", "/a/export");
  EXPECT_EQ(formless.status, 400);
  EXPECT_THAT(formless.body, HasSubstr("format is missing, expected safetensors"));
  const RawResponse file = ask("GET", "/a/export/export?format=safetensors");
  ASSERT_EQ(file.status, 200) << file.body;
  EXPECT_EQ(file.Field("content-type"), "application/octet-stream");
  EXPECT_EQ(file.Field("x-file-size"), absl::StrCat(file.body.size()));
  EXPECT_GT(file.body.size(), size_t{2} << 20);

  const RawResponse made = ask("POST", "/b/import?session_ttl_ms=5000", file.body);
  EXPECT_EQ(made.status, 200) << made.body;
  EXPECT_THAT(made.body,
              AllOf(HasSubstr(R"("id":"b")"), HasSubstr(R"("ttl_ms":5000)"),
                    HasSubstr(R"("import":{"file_state_dtype":"f32","state_dtype":"f16",)"
                              R"("rounded_tensors":3,"file_engram_capacity":64,)"
                              R"("engram_capacity":128})")));
  const auto refusal = [&](const RawResponse& response, int status, const std::string& code) {
    EXPECT_EQ(response.status, status) << response.body;
    EXPECT_THAT(response.body, HasSubstr(code));
  };
  refusal(ask("POST", "/b/import", file.body), 409, "session_exists");
  std::string damaged = file.body;
  damaged[damaged.size() - 50] ^= 4;
  refusal(ask("POST", "/c/import", damaged), 422, "checksum_mismatch");
  refusal(ask("POST", "/c/import", "what is this?"), 400, "bad_file");
  refusal(ask("POST", "/c/import?ttl=3", file.body), 400, "ttl is unknown");
  refusal(ask("POST", "/c/import?session_ttl_ms=soon", file.body), 400, "expected a number");
  refusal(ask("GET", "/c/export?format=safetensors"), 404, "no_such_session");
  refusal(ask("GET", "/b/export?format=zip"), 400, "expected safetensors");
  refusal(ask("POST", "/c/elsewhere", "{}"), 404, "forget_segments or import");
}

// A file may be longer than other bodies, which keep their bound.
TEST_F(OpenAiServiceTest, FilesOfSessionsHaveABoundOfTheirOwn) {
  ServingFacts facts;
  facts.session_transfers = std::make_shared<SessionTransfers>(
      SessionTransfers::Limits{.at_once = 1, .file_bytes = int64_t{20} << 20});
  access_.Publish(engine_, facts);
  Start(absl::Minutes(1));
  const auto post = [&](const std::string& path, size_t bytes) {
    RawHttpClient client(server_->port());
    client.Send(absl::StrCat("POST /v1/sessions", path, " HTTP/1.1\r\nHost: x\r\nContent-Length: ",
                             bytes, "\r\nConnection: close\r\n\r\n"));
    if (bytes <= size_t{20} << 20) client.Send(std::string(bytes, 'x'));
    return client.Read();
  };
  EXPECT_EQ(post("/a/import", size_t{17} << 20).status, 400) << "read, and found to be none";
  EXPECT_EQ(post("/a/import", (size_t{20} << 20) + 1).status, 413);
  EXPECT_EQ(post("/a/forget_segments", (size_t{20} << 20) + 1).status, 413);
  // A place goes with its request, which may outlive the answer for a moment.
  absl::StatusOr<std::shared_ptr<const void>> place = absl::UnknownError("");
  while (!place.ok()) place = facts.session_transfers->Begin(SessionTransfers::kImport);
  EXPECT_EQ(post("/a/import", 10).status, 429) << "no place";
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
