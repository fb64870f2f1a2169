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

SessionKey Key(std::string name) { return {"", std::move(name)}; }

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
  EXPECT_EQ(h.loop->GetSession(Key("s"))->position, 8);
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

  ASSERT_EQ(h.loop->DeleteSession(Key("s")), absl::OkStatus());
  const Answer again = h.Generate(request);
  EXPECT_TRUE(again.last.replayed);
  EXPECT_TRUE(again.last.session_gone);
  EXPECT_EQ(again.tokens, first.tokens);
  ASSERT_TRUE(h.loop->CreateSession(Key("s"), absl::Seconds(5)).ok());
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
  const int64_t position = h.loop->GetSession(Key("s"))->position;
  EXPECT_GT(position, 0);
  EXPECT_EQ(PositionOf(h.Generate(request).status()), position);
  ASSERT_EQ(h.loop->DeleteSession(Key("s")), absl::OkStatus());
  const Answer again = h.Generate(request);
  EXPECT_EQ(ReasonOf(again.status()), kReasonKeyBroken);
  EXPECT_EQ(PositionOf(again.status()), 0);
  EXPECT_THAT(std::string(again.status().message()), HasSubstr("has ended since"));
}

TEST(EngineLoopRetryTest, AKeyOfARunningRequestIsAborted) {
  LoopHarness h;
  Request request = Greedy({1}, 6, "s");
  request.idempotency_key = "k";
  auto first = h.Submit(request).value();
  const Answer again = h.Generate(request);
  EXPECT_TRUE(absl::IsAborted(again.status()));
  EXPECT_EQ(ReasonOf(again.status()), kReasonKeyRunning);
  EXPECT_EQ(h.Finish(*first).status(), absl::OkStatus());
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
  EXPECT_TRUE(absl::IsNotFound(h.loop->GetSession(Key("hit")).status())) << "it is spoilt";
  EXPECT_FALSE(h.loop->health().ok());
  EXPECT_TRUE(absl::IsUnavailable(h.Submit(Greedy({1}, 1)).status()));
  EXPECT_EQ(h.Finish(*paused).tokens[0].size(), 50);
  EXPECT_EQ(h.loop->GetSession(Key("idle"))->position, 4);
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
