// Requests that come again, and steps that fail, in the engine's loop.
#include <string>
#include <utility>

#include "engine/engine_loop.h"
#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/loop_harness.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;

// --- Retries ---

TEST(EngineLoopRetryTest, AnUnexpectedPositionIsAbortedWithThePosition) {
  LoopHarness h;
  h.Generate(Greedy({1, 2}, 2, "s"));
  Request request = Greedy({3}, 2, "s");
  request.expected_position = 3;
  const Answer refused = h.Generate(request);
  EXPECT_TRUE(absl::IsAborted(refused.status()));
  EXPECT_EQ(PositionOf(refused.status()), 4);
  EXPECT_EQ(ReasonOf(refused.status()), kReasonPosition);
  request.expected_position = 4;
  EXPECT_EQ(h.Generate(request).status(), absl::OkStatus());
  Request fresh = Greedy({3}, 2);
  fresh.expected_position = 1;
  EXPECT_TRUE(absl::IsAborted(h.Generate(fresh).status()));
}

TEST(EngineLoopRetryTest, ARepeatedKeyReplaysTheAnswerAndFeedsNothing) {
  LoopHarness h;
  Request request = Greedy({1, 2}, 6, "s");
  request.sampling.temperature = 1;  // no seed: drawn at random
  request.idempotency_key = "k";
  request.expected_position = 0;
  const Answer first = h.Generate(request);
  const int64_t fed = h.stats.prompt_tokens.value() + h.stats.generated_tokens.value();
  const Answer again = h.Generate(request);
  EXPECT_EQ(again.status(), absl::OkStatus());
  EXPECT_TRUE(again.last.replayed);
  EXPECT_EQ(again.tokens, first.tokens);
  EXPECT_EQ(again.last.seed, first.last.seed);
  EXPECT_EQ(h.stats.prompt_tokens.value() + h.stats.generated_tokens.value(), fed);
  EXPECT_EQ(h.loop->commands().Get(Key("s"))->position, 8);
}

// An answer that is sent again claims no session that has ended, nor another one of its name.
TEST(EngineLoopRetryTest, AReplaySaysThatItsSessionIsGone) {
  LoopHarness h;
  Request request = Greedy({1, 2}, 6, "s");
  request.idempotency_key = "k";
  const Answer first = h.Generate(request);
  EXPECT_FALSE(first.last.session_gone);
  EXPECT_FALSE(h.Generate(request).last.session_gone);
  EXPECT_EQ(h.Generate(Greedy({3}, 2, "s")).status(), absl::OkStatus());
  EXPECT_FALSE(h.Generate(request).last.session_gone) << "the session only went on";

  ASSERT_EQ(h.loop->commands().Delete(Key("s")), absl::OkStatus());
  const Answer again = h.Generate(request);
  EXPECT_TRUE(again.last.replayed);
  EXPECT_TRUE(again.last.session_gone);
  EXPECT_EQ(again.tokens, first.tokens);
  ASSERT_TRUE(h.loop->commands().Create(Key("s"), absl::Seconds(5)).ok());
  EXPECT_TRUE(h.Generate(request).last.session_gone) << "this is another one";

  Request nameless = Greedy({1, 2}, 6);
  nameless.idempotency_key = "nameless";
  h.Generate(nameless);
  EXPECT_FALSE(h.Generate(nameless).last.session_gone);

  Request expires = Greedy({1, 2}, 6, "short");
  expires.idempotency_key = "e";
  expires.session_ttl = absl::Seconds(5);
  h.Generate(expires);
  EXPECT_FALSE(h.Generate(expires).last.session_gone);
  h.clock.Advance(absl::Seconds(6));
  h.TurnUntilQuiet();
  EXPECT_TRUE(h.Generate(expires).last.session_gone);
}

TEST(EngineLoopRetryTest, ABrokenKeyHasNoPositionInASessionThatIsGone) {
  LoopHarness h;
  Request request = Greedy({1}, 100, "s");
  request.idempotency_key = "k";
  auto cut = h.Submit(request).value();
  for (int turn = 0; turn < 5; ++turn) h.Turn();
  cut->Cancel();
  h.TurnUntilQuiet();
  const int64_t position = h.loop->commands().Get(Key("s"))->position;
  EXPECT_GT(position, 0);
  EXPECT_EQ(PositionOf(h.Generate(request).status()), position);
  ASSERT_EQ(h.loop->commands().Delete(Key("s")), absl::OkStatus());
  const Answer again = h.Generate(request);
  EXPECT_EQ(ReasonOf(again.status()), kReasonKeyBroken);
  EXPECT_EQ(PositionOf(again.status()), 0);
  EXPECT_THAT(std::string(again.status().message()), HasSubstr("has ended since"));
}

TEST(EngineLoopRetryTest, AKeyOfARunningRequestIsAnsweredAsThatGoesOn) {
  LoopHarness h;
  Request request = Greedy({1}, 20, "s");
  request.idempotency_key = "k";
  auto first = h.Submit(request).value();
  for (int turn = 0; turn < 5; ++turn) h.Turn();
  auto second = h.Submit(request).value();
  h.Turn();
  Answer early;
  LoopHarness::Read(*second, early);
  EXPECT_FALSE(early.ended);
  EXPECT_TRUE(early.start.has_value());
  EXPECT_GE(early.tokens[0].size(), 5u) << "what was said before";
  auto third = h.Submit(request).value();
  const Answer answer = h.Finish(*first);
  LoopHarness::Read(*second, early);
  EXPECT_TRUE(early.ended);
  EXPECT_EQ(early.tokens, answer.tokens);
  EXPECT_TRUE(early.last.replayed);
  EXPECT_FALSE(early.last.session_gone);
  EXPECT_EQ(early.last.session_position, answer.last.session_position);
  EXPECT_EQ(h.Finish(*third).tokens, answer.tokens);
  EXPECT_EQ(h.loop->commands().Get(Key("s"))->position, 21) << "fed once";
  EXPECT_EQ(h.stats.replayed.value(), 2);
  EXPECT_EQ(h.stats.requests_waiting.value(), 0);
}

TEST(EngineLoopRetryTest, WhoRepeatsARequestTakesItOverWhenItsClientLeaves) {
  LoopHarness h;
  Request request = Greedy({1}, 20, "s");
  request.idempotency_key = "k";
  auto first = h.Submit(request).value();
  for (int turn = 0; turn < 3; ++turn) h.Turn();
  auto second = h.Submit(request).value();
  h.Turn();
  first.reset();
  const Answer answer = h.Finish(*second);
  EXPECT_EQ(answer.status(), absl::OkStatus());
  EXPECT_EQ(answer.tokens[0].size(), 20u);
  EXPECT_EQ(h.loop->commands().Get(Key("s"))->position, 21);
}

TEST(EngineLoopRetryTest, WhenAllHaveLeftTheRequestEnds) {
  LoopHarness h;
  Request request = Greedy({1}, 2000, "s");
  request.idempotency_key = "k";
  auto first = h.Submit(request).value();
  for (int turn = 0; turn < 3; ++turn) h.Turn();
  auto second = h.Submit(request).value();
  h.Turn();
  first.reset();
  h.Turn();
  second.reset();
  h.TurnUntilQuiet();
  EXPECT_LT(h.loop->commands().Get(Key("s"))->position, 20);
  EXPECT_EQ(ReasonOf(h.Generate(request).status()), kReasonKeyBroken);
}

TEST(EngineLoopRetryTest, ADetachedTurnIsFetchedWhileItRunsAndAfterwards) {
  LoopHarness h;
  Request request = Greedy({1}, 30, "s");
  request.idempotency_key = "k";
  request.detached = true;
  request.deadline = h.clock.Monotonic() + absl::Milliseconds(4);
  h.Submit(request).value().reset();  // and gone
  for (int turn = 0; turn < 6; ++turn) h.Turn();
  request.deadline = h.clock.Monotonic() + absl::Milliseconds(2);
  const Answer poll = h.Generate(request);
  EXPECT_EQ(poll.status().code(), absl::StatusCode::kDeadlineExceeded) << "of the listening alone";
  EXPECT_FALSE(poll.tokens[0].empty());
  request.deadline = absl::InfiniteDuration();
  const Answer fetched = h.Generate(request);
  EXPECT_EQ(fetched.tokens[0].size(), 30u);
  EXPECT_EQ(h.Generate(request).tokens, fetched.tokens);
  EXPECT_EQ(h.loop->commands().Get(Key("s"))->position, 31);
}

TEST(EngineLoopRetryTest, WhoFollowsARequestThatFeedsNothingRunsItself) {
  HarnessOptions options;
  options.engine.max_rows = 1;
  LoopHarness h(options);
  auto running = h.Submit(Greedy({1}, 10)).value();
  h.Turn();
  Request request = Greedy({2}, 5, "s");
  request.idempotency_key = "k";
  request.deadline = h.clock.Monotonic() + absl::Milliseconds(3);
  auto first = h.Submit(request).value();
  request.deadline = absl::InfiniteDuration();
  auto second = h.Submit(request).value();
  const Answer answer = h.Finish(*second);
  EXPECT_EQ(h.Finish(*first).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(answer.status(), absl::OkStatus());
  EXPECT_FALSE(answer.last.replayed);
  EXPECT_EQ(answer.tokens[0].size(), 5u);
  EXPECT_EQ(h.Finish(*running).status(), absl::OkStatus());
}

TEST(EngineLoopRetryTest, SlowReadersFollowInTheirTime) {
  HarnessOptions options;
  options.engine.stream_capacity_events = 4;
  LoopHarness h(options);
  Request request = Greedy({1}, 40, "s");
  request.idempotency_key = "k";
  auto first = h.Submit(request).value();
  h.Turn();
  auto slow = h.Submit(request).value();
  const Answer answer = h.Finish(*first);
  EXPECT_EQ(answer.tokens[0].size(), 40u) << "nobody waits for it";
  EXPECT_EQ(h.Finish(*slow).tokens, answer.tokens);
}

TEST(EngineLoopRetryTest, OnlySoManyFollowAtOnce) {
  HarnessOptions options;
  options.engine.max_queued_requests = 2;
  LoopHarness h(options);
  Request request = Greedy({1}, 20, "s");
  request.idempotency_key = "k";
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int i = 0; i < 3; ++i) {
    streams.push_back(h.Submit(request).value());
    h.Turn();
  }
  const Answer refused = h.Generate(request);
  EXPECT_EQ(ReasonOf(refused.status()), kReasonKeyRunning);
  EXPECT_TRUE(RetryAfterOf(refused.status()).has_value());
  for (const auto& stream : streams) EXPECT_EQ(h.Finish(*stream).status(), absl::OkStatus());
}

TEST(EngineLoopRetryTest, AKeyOfABrokenRequestIsAbortedWithThePosition) {
  LoopHarness h;
  Request request = Greedy({1, 2}, 50, "s");
  request.idempotency_key = "k";
  auto first = h.Submit(request).value();
  h.Turn();
  h.Turn();
  first->Cancel();
  const Answer cut = h.Finish(*first);
  const Answer again = h.Generate(request);
  EXPECT_TRUE(absl::IsAborted(again.status()));
  EXPECT_EQ(ReasonOf(again.status()), kReasonKeyBroken);
  EXPECT_EQ(PositionOf(again.status()), cut.last.session_position);
}

TEST(EngineLoopRetryTest, AKeyOfARequestThatFedNothingRunsNormally) {
  LoopHarness h;
  Request request = Greedy({1, 2}, 3, "s");
  request.idempotency_key = "k";
  auto first = h.Submit(request).value();
  first->Cancel();
  EXPECT_TRUE(absl::IsCancelled(h.Finish(*first).status()));
  const Answer again = h.Generate(request);
  EXPECT_EQ(again.status(), absl::OkStatus());
  EXPECT_FALSE(again.last.replayed);
}

TEST(EngineLoopRetryTest, AKeyReusedForAnotherRequestIsInvalid) {
  LoopHarness h;
  Request request = Greedy({1, 2}, 3, "s");
  request.idempotency_key = "k";
  h.Generate(request);
  request.prompt.continued = {9};
  EXPECT_EQ(FieldOf(h.Generate(request).status()), "idempotency_key");
}

// --- Failing steps ---

TEST(EngineLoopRetryTest, AFailingStepEndsItsRowsAndSparesTheOthers) {
  HarnessOptions options;
  options.engine.stream_capacity_events = 4;
  LoopHarness h(options);
  h.Generate(Greedy({5}, 3, "idle"));
  auto paused = h.Submit(Greedy({1}, 50, "paused")).value();
  h.TurnUntilQuiet();  // its reader sleeps
  auto hit = h.Submit(Greedy({2}, 50, "hit")).value();
  h.Turn();
  h.backend.FailNext(absl::InternalError("ECC"));
  const Answer failed = h.Finish(*hit);
  EXPECT_TRUE(absl::IsInternal(failed.status()));
  EXPECT_THAT(std::string(failed.status().message()), HasSubstr("ECC"));
  EXPECT_TRUE(absl::IsNotFound(h.loop->commands().Get(Key("hit")).status())) << "it is spoilt";
  EXPECT_FALSE(h.loop->health().ok());
  EXPECT_TRUE(absl::IsUnavailable(h.Submit(Greedy({1}, 1)).status()));
  EXPECT_EQ(h.Finish(*paused).tokens[0].size(), 50);
  EXPECT_EQ(h.loop->commands().Get(Key("idle"))->position, 4);
  EXPECT_EQ(h.loop->CheckIntegrity(), absl::OkStatus());
}

TEST(EngineLoopRetryTest, AStepThatTakesLongCanBeSeenToDoSo) {
  HarnessOptions options;
  LoopActivity activity;
  options.step_time = absl::Minutes(6);
  LoopHarness h(options);
  h.on_step = [&] { activity = h.loop->activity(); };
  h.Generate(Greedy({1, 2, 3}, 1));
  EXPECT_EQ(activity.ToString(),
            "step 0 of 1 rows and 3 tokens is in phase forward for 6m, 6m after its turn began");
  EXPECT_EQ(activity.in_phase, absl::Minutes(6));
  EXPECT_EQ(h.loop->activity().phase, StepPhase::kIdle);
}

TEST(EngineLoopRetryTest, EndingTheLoopEndsWhatIsInFlight) {
  std::shared_ptr<TokenStream> running, queued;
  {
    LoopHarness h;
    running = h.Submit(Greedy({1}, 50)).value();
    h.Turn();
    queued = h.Submit(Greedy({1}, 50)).value();
  }
  Answer a, b;
  LoopHarness::Read(*running, a);
  LoopHarness::Read(*queued, b);
  EXPECT_TRUE(absl::IsUnavailable(a.status()));
  EXPECT_TRUE(absl::IsUnavailable(b.status()));
  running->Cancel();  // no engine any more
}

}  // namespace
}  // namespace mneme
