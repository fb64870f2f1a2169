#include "engine/request_check.h"

#include <algorithm>
#include <vector>

#include "engine/capacity_plan.h"
#include "engine/engine.h"
#include "engine/idempotency.h"
#include "engine/model_runner.h"
#include "engine/sessions/session_table.h"
#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace mneme {
namespace {

constexpr RequestBounds kBounds = {
    .vocab = 100, .has_tokenizer = true, .max_sessions = 4, .max_request_tokens = 50};

Request Good() {
  Request request;
  request.prompt = {{1, 2}, {2}};
  request.session.name = "chat-1";
  return request;
}

std::string RefusedField(const Request& request) {
  return FieldOf(ValidateRequest(request, kBounds)).value_or("ok");
}

TEST(RequestCheckTest, APromptHasALimitOfItsOwn) {
  RequestBounds bounds = kBounds;
  bounds.max_prompt_tokens = 3;
  Request request = Good();
  EXPECT_EQ(ValidateRequest(request, bounds), absl::OkStatus());
  request.prompt.at_start = {1, 2, 3, 4};
  const absl::Status refused = ValidateRequest(request, bounds);
  EXPECT_EQ(FieldOf(refused), "text");
  EXPECT_EQ(refused.message(), "text has 4 tokens, expected at most 3 (--max-prompt-tokens)");
}

TEST(RequestCheckTest, NothingIsDurableWithoutAStore) {
  Request request = Good();
  request.durability = Durability::kTurn;
  EXPECT_EQ(RefusedField(request), "session.durability");
  RequestBounds bounds = kBounds;
  bounds.stores_sessions = true;
  EXPECT_EQ(ValidateRequest(request, bounds), absl::OkStatus());
  request.durability = Durability::kNone;
  EXPECT_EQ(RefusedField(request), "ok");
}

TEST(RequestCheckTest, AGoodRequestPasses) { EXPECT_EQ(RefusedField(Good()), "ok"); }

TEST(RequestCheckTest, EachBadFieldIsNamed) {
  const auto with = [](auto change) {
    Request request = Good();
    change(request);
    return RefusedField(request);
  };
  EXPECT_EQ(with([](Request& r) { r.session.name = std::string(129, 'a'); }), "session.name");
  EXPECT_EQ(with([](Request& r) { r.session.name = "a b"; }), "session.name");
  EXPECT_EQ(with([](Request& r) { r.session.name = "a\n"; }), "session.name");
  EXPECT_EQ(with([](Request& r) { r.session.name = "\xc3\xa9"; }), "session.name");
  EXPECT_EQ(with([](Request& r) { r.session_ttl = -absl::Seconds(1); }), "session.ttl_ms");
  EXPECT_EQ(with([](Request& r) { r.prompt.at_start = {3, 100}; }), "token_ids.ids[1]");
  EXPECT_EQ(with([](Request& r) { r.prompt.continued = {-1}; }), "token_ids.ids[0]");
  EXPECT_EQ(with([](Request& r) { r.prompt = {}; }), "ok") << "the session may have a token";
  EXPECT_EQ(with([](Request& r) {
              r.prompt = {};
              r.session = {};
            }),
            "text");
  EXPECT_EQ(with([](Request& r) { r.stop.max_tokens = 49; }), "text");
  EXPECT_EQ(with([](Request& r) {
              r.stop.max_tokens = 49;
              r.prompt.source = PromptSource::kTokenIds;
            }),
            "token_ids");
  EXPECT_EQ(with([](Request& r) { r.n = 0; }), "response.n");
  EXPECT_EQ(with([](Request& r) { r.n = 5; }), "response.n") << "more than there are slabs";
  EXPECT_EQ(with([](Request& r) { r.logprobs = 21; }), "response.logprobs");
  EXPECT_EQ(with([](Request& r) { r.prompt_logprobs = -2; }), "response.prompt_logprobs");
  EXPECT_EQ(with([](Request& r) { r.expected_position = -1; }), "expected_position");
  EXPECT_EQ(with([](Request& r) { r.idempotency_key = std::string(129, 'k'); }), "idempotency_key");
  EXPECT_EQ(with([](Request& r) { r.priority = 1001; }), "priority");
  EXPECT_EQ(with([](Request& r) { r.sampling.top_p = 0; }), "sampling.top_p");
  EXPECT_EQ(with([](Request& r) { r.stop.max_tokens = -1; }), "stopping.max_tokens");
}

// All but `left` get a bias of -100.
Request Banning(const std::vector<int32_t>& left) {
  Request request = Good();
  for (int32_t token = 0; token < kBounds.vocab; ++token) {
    if (std::find(left.begin(), left.end(), token) == left.end()) {
      request.sampling.logit_bias.push_back({token, -100});
    }
  }
  return request;
}

TEST(RequestCheckTest, ARequestThatLeavesNothingToDrawIsRefused) {
  EXPECT_EQ(RefusedField(Banning({17})), "ok");
  EXPECT_EQ(RefusedField(Banning({})), "sampling.logit_bias");
  Request feeding = Banning({});
  feeding.stop.max_tokens = 0;
  feeding.stop.min_tokens = 0;
  EXPECT_EQ(RefusedField(feeding), "ok") << "nothing is drawn";
  Request lowered = Banning({});
  lowered.sampling.logit_bias[5].second = -99.5f;
  EXPECT_EQ(RefusedField(lowered), "ok") << "unlikely is not banned";
}

TEST(RequestCheckTest, StopTokensAloneCannotFillMinTokens) {
  const std::vector<int32_t> end_tokens = {2, 5000};  // the second one is in no vocabulary
  RequestBounds bounds = kBounds;
  bounds.end_tokens = end_tokens;
  Request request = Banning({2, 17});
  request.stop.stop_token_ids = {17};
  const auto field = [&] { return FieldOf(ValidateRequest(request, bounds)).value_or("ok"); };
  EXPECT_EQ(field(), "ok");
  request.stop.min_tokens = 1;
  EXPECT_EQ(field(), "stopping.min_tokens");
  request.stop.ignore_eos = true;
  EXPECT_EQ(field(), "ok") << "the end token is a token like any other then";
}

TEST(RequestCheckTest, MessagesNameValueAndExpectation) {
  Request request = Good();
  request.prompt.at_start = {1, 2, 777};
  EXPECT_EQ(ValidateRequest(request, kBounds).message(),
            "token_ids.ids[2] is 777, expected 0 to 99");
  request = Good();
  request.session.name = "a b";
  EXPECT_EQ(ValidateRequest(request, kBounds).message(),
            "session.name \"a b\" has \" \" at byte 1, expected A-Z a-z 0-9 . _ : / @ + -");
  // The engine's own -1 is nothing that a client could send.
  request = Good();
  request.logprobs = 21;
  EXPECT_EQ(ValidateRequest(request, kBounds).message(),
            "response.logprobs is 21, expected 0 to 20");
  request.logprobs = -1;
  request.prompt_logprobs = -2;
  EXPECT_EQ(ValidateRequest(request, kBounds).message(),
            "response.prompt_logprobs is -2, expected 0 to 20");
  request = Good();
  request.prompt.at_start.assign(51, 1);
  EXPECT_EQ(ValidateRequest(request, kBounds).message(),
            "text has 51 tokens, expected at most 50 (--max-model-len)");
}

TEST(RequestCheckTest, TheDigestSeesTheBodyOnly) {
  const uint64_t digest = RequestDigest(Good());
  Request same = Good();
  same.id = "other";
  same.deadline = absl::Seconds(1);
  same.detached = true;
  EXPECT_EQ(RequestDigest(same), digest);
  Request other = Good();
  other.prompt.continued.push_back(3);
  EXPECT_NE(RequestDigest(other), digest);
  other = Good();
  other.sampling.seed = 0;
  EXPECT_NE(RequestDigest(other), digest) << "no seed and seed 0 differ";
  other = Good();
  other.stop.stop_strings = {"x"};
  EXPECT_NE(RequestDigest(other), digest);
}

TEST(CapacityPlanTest, TheRunnerIsMeasuredAtItsLargestStep) {
  EngineOptions options = {
      .max_rows = 300, .max_tokens_per_step = 256, .max_logit_rows_per_step = 9};
  const RunnerLimits few_tokens = LargestStep(options);
  EXPECT_EQ(few_tokens.tokens, 256);
  EXPECT_EQ(few_tokens.rows, 256) << "each row feeds a token";
  EXPECT_EQ(few_tokens.logit_rows, 265);
  options.max_tokens_per_step = 512;
  EXPECT_EQ(LargestStep(options).rows, 300);
  EXPECT_EQ(RunnerBytes({.rows = 2, .tokens = 4, .logit_rows = 3}, /*workspace_bytes=*/1000,
                        /*vocab=*/50, DType::kF32),
            1000 + 3 * 50 * 4);
}

TEST(StatusPayloadTest, FactsComeBack) {
  absl::Status status = WithRetryAfter(
      WithPosition(WithReason(absl::AbortedError("no"), kReasonPosition), 12345678901),
      absl::Milliseconds(1500));
  EXPECT_EQ(PositionOf(status), 12345678901);
  EXPECT_EQ(ReasonOf(status), kReasonPosition);
  EXPECT_EQ(RetryAfterOf(status), absl::Milliseconds(1500));
  EXPECT_EQ(FieldOf(status), std::nullopt);
}

TEST(CapacityPlanTest, CountsWholeSlabsInTheBudget) {
  EngineOptions options;
  options.state_memory_bytes = 1000;
  EXPECT_EQ(PlanCapacity(300, 5000, 0, options)->sessions, 3);
  options.max_sessions = 2;
  EXPECT_EQ(PlanCapacity(300, 5000, 0, options)->sessions, 2);
}

TEST(CapacityPlanTest, SaysWhatThePrefixCacheTakes) {
  const EngineOptions options = {.prefix_cache_memory_bytes = 4096};
  EXPECT_THAT(PlanCapacity(1024, 5120, 0, options)->ToString(),
              testing::HasSubstr("beginnings of prompts take 4.0 KiB of the host, at least 4"));
}

TEST(CapacityPlanTest, ABudgetBeyondTheMemoryIsCutToItLessAReserve) {
  EngineOptions options;
  options.state_memory_bytes = int64_t{100} << 40;
  const CapacityPlan plan = PlanCapacity(1024, 5120, 1024, options).value();
  EXPECT_EQ(plan.sessions, 4);
  EXPECT_EQ(plan.ToString(),
            "4 sessions fit in 4.0 KiB (1.0 KiB each; 100.0 TiB asked for, cut to what is "
            "available less a reserve of 1.0 KiB)");
  options.state_memory_bytes = 5120;
  const CapacityPlan whole = PlanCapacity(1024, 5120, 1024, options).value();
  EXPECT_EQ(whole.sessions, 5) << "it is there, and was asked for";
  EXPECT_EQ(whole.ToString(), "5 sessions fit in 5.0 KiB (1.0 KiB each)");
  options.state_memory_bytes = 5121;
  EXPECT_EQ(PlanCapacity(8192, 5120, 1024, options).status().message(),
            "no session fits: the state of one takes 8192 bytes, and there are 4096 bytes for "
            "states (the configured budget is 5121 bytes, 5120 bytes are available, less a "
            "reserve)");
  options.state_memory_bytes = 7168;
  EXPECT_EQ(PlanCapacity(8192, 5120, 1024, options).status().message(),
            "no session fits: the state of one takes 8.0 KiB, and there are 4.0 KiB for states "
            "(the configured budget is 7.0 KiB, 5.0 KiB are available, less a reserve)");
}

TEST(CapacityPlanTest, WithoutABudgetAReserveIsKept) {
  const int64_t gib = int64_t{1} << 30;
  const CapacityPlan plan = PlanCapacity(gib / 8, 10 * gib, gib, {}).value();
  EXPECT_EQ(plan.sessions, 72) << "nine tenths of it";
  EXPECT_EQ(plan.ToString(), "72 sessions fit in 9.0 GiB (128.0 MiB each)");
}

TEST(CapacityPlanTest, NoRoomForOneIsAnErrorWithTheNumbers) {
  EngineOptions options;
  options.state_memory_bytes = 1024;
  const absl::Status status = PlanCapacity(2048, 5000, 0, options).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_EQ(status.message(),
            "no session fits: the state of one takes 2.0 KiB, and there are 1.0 KiB for states "
            "(the configured budget is 1.0 KiB)");
  options.state_memory_bytes = int64_t{4} << 20;
  EXPECT_EQ(
      PlanCapacity((int64_t{4} << 20) + 1024, int64_t{1} << 30, 0, options).status().message(),
      "no session fits: the state of one takes 4195328 bytes, and there are 4194304 bytes "
      "for states (the configured budget is 4194304 bytes)")
      << "which would both be 4.0 MiB";
  EXPECT_EQ(PlanCapacity(1025, 1024, 0, {}).status().message(),
            "no session fits: the state of one takes 1025 bytes, and there are 1024 bytes for "
            "states (1024 bytes available, less a reserve)");
}

TEST(CapacityPlanTest, WeightsThatLeaveNothingAreNamed) {
  const absl::Status status = PlanCapacity(2048, -5120, 0, {}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_EQ(status.message(),
            "no session fits: weights and workspace take 5.0 KiB more than there is, and the state "
            "of one takes another 2.0 KiB");
}

TEST(SessionTableTest, SessionsExpireInOrderUnlessBusyOrEverlasting) {
  SessionTable table;
  const auto add = [&](std::string name, absl::Duration ttl) -> Session& {
    Session session;
    session.key.name = std::move(name);
    session.ttl = ttl;
    return table.Insert(std::move(session), absl::Seconds(100));
  };
  Session& a = add("a", absl::Seconds(20));
  Session& b = add("b", absl::Seconds(10));
  add("c", absl::InfiniteDuration());
  EXPECT_EQ(table.NextExpiry(), absl::Seconds(110));
  EXPECT_EQ(table.FirstExpired(absl::Seconds(109)), nullptr);
  EXPECT_EQ(table.FirstExpired(absl::Seconds(110)), &b);
  table.MarkBusy(b);
  EXPECT_EQ(table.FirstExpired(absl::Seconds(500)), &a);
  table.MarkIdle(b, absl::Seconds(200));
  table.Remove(a);
  EXPECT_EQ(table.NextExpiry(), absl::Seconds(210));
  table.Remove(b);
  EXPECT_EQ(table.NextExpiry(), absl::InfiniteDuration());
  EXPECT_EQ(table.size(), 1);
}

TEST(SessionTableTest, ListsOneOwnersSessionsByName) {
  SessionTable table;
  for (const char* name : {"b2", "a1", "b1"}) {
    Session session;
    session.key = {"me", name};
    table.Insert(std::move(session), absl::ZeroDuration());
  }
  Session foreign;
  foreign.key = {"you", "b0"};
  table.Insert(std::move(foreign), absl::ZeroDuration());
  const auto found = table.List("me", "b");
  ASSERT_EQ(found.size(), 2);
  EXPECT_EQ(found[0]->key.name, "b1");
  EXPECT_EQ(found[1]->key.name, "b2");
}

TokenEvent OneText(std::string text) {
  TokenEvent event;
  event.text = std::move(text);
  event.token_ids = {1};
  return event;
}

TEST(IdempotencyTableTest, OldestEndedKeysAreForgottenRunningOnesNever) {
  IdempotencyTable table(/*max_keys=*/2, /*max_bytes=*/1 << 20);
  table.Insert("", "running", 1);
  KeyRecord& ended = table.Insert("", "ended", 2);
  table.End(ended, KeyState::kFinished, 5, 0);
  table.Insert("", "new", 3);
  EXPECT_EQ(table.Find("", "ended"), nullptr);
  EXPECT_NE(table.Find("", "running"), nullptr);
  EXPECT_EQ(table.Find("other owner", "running"), nullptr);
  table.Insert("", "more", 4);
  EXPECT_EQ(table.size(), 3) << "nothing had ended";
}

TEST(IdempotencyTableTest, RecordsMergeAndAreBounded) {
  IdempotencyTable table(10, /*max_bytes=*/static_cast<int64_t>(sizeof(TokenEvent)) + 4'100);
  KeyRecord& first = table.Insert("", "first", 1);
  for (int i = 0; i < 5; ++i) table.Append(first, OneText("ab"));
  EXPECT_EQ(first.events.size(), 1);
  EXPECT_EQ(first.events[0].text, "ababababab");
  table.End(first, KeyState::kFinished, 3, 0);
  KeyRecord& second = table.Insert("", "second", 2);
  table.Append(second, OneText(std::string(4'000, 'x')));
  EXPECT_TRUE(first.dropped_events) << "the oldest answer made room";
  EXPECT_FALSE(second.dropped_events);
  table.Append(second, OneText(std::string(4'000, 'x')));
  EXPECT_TRUE(second.dropped_events) << "too large by itself";
  EXPECT_EQ(table.bytes(), 0);
  EXPECT_EQ(table.Find("", "first")->position, 3);
}

}  // namespace
}  // namespace mneme
