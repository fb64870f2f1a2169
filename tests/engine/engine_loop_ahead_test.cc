// Steps that begin before the tokens of the one before are known: when they do, and that nobody can
// tell by the answers.
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/loop_harness.h"

namespace mneme {
namespace {

using ::testing::ElementsAre;

HarnessOptions Asynchronous() { return {.asynchronous = true}; }

TEST(EngineLoopAheadTest, AStepBeginsBeforeTheTokensOfTheOneBeforeAreThere) {
  LoopHarness h(Asynchronous());
  auto stream = h.Submit(Greedy({1}, 4)).value();
  Answer answer;
  const auto tokens = [&] {
    LoopHarness::Read(*stream, answer);
    return answer.tokens.empty() ? 0 : answer.tokens[0].size();
  };
  h.Turn();
  EXPECT_EQ(h.rows_per_step.size(), 1) << "of a prompt";
  h.Turn();
  EXPECT_EQ(h.rows_per_step.size(), 3) << "one step, and the next one";
  EXPECT_EQ(tokens(), 2) << "the client waits for neither";
  h.Turn();
  EXPECT_EQ(h.rows_per_step.size(), 4);
  EXPECT_EQ(tokens(), 3);
  h.Turn();
  EXPECT_EQ(h.rows_per_step.size(), 4) << "the length is known ahead";
  h.Turn();
  EXPECT_EQ(tokens(), 4);
  EXPECT_TRUE(answer.ended);
  EXPECT_EQ(h.stats.ahead_steps.value(), 2);
  EXPECT_EQ(h.stats.step_seconds.count(), 4);
  EXPECT_GT(h.stats.step_seconds.sum(), 0);
  EXPECT_LE(h.stats.step_seconds.sum(), absl::ToDoubleSeconds(4 * h.options.step_time))
      << "a step ahead begins where the one before ended";
  OracleSession oracle;
  oracle.FeedPrompt({1});
  EXPECT_EQ(answer.tokens[0], oracle.Generate(h.options, Greedy({1}, 4), 0, 0));
}

// A stop token is found on the device: the step ahead leaves the session as it was, and the others
// go on.
TEST(EngineLoopAheadTest, AStopTokenIsNotFedByTheStepAhead) {
  HarnessOptions options = Asynchronous();
  options.vocab = 32;
  options.end_tokens = {0};
  LoopHarness h(options);
  Request ends, goes_on = Greedy({2}, 200, "goes_on");
  goes_on.stop.ignore_eos = true;
  OracleSession first, second;
  second.FeedPrompt({2});
  std::vector<int32_t> want;
  for (int prompt = 0; want.size() < 5 || want.size() > 100; ++prompt) {
    ASSERT_LT(prompt, options.vocab);
    ends = Greedy({prompt}, 200, "ends");
    first = {};
    first.FeedPrompt({prompt});
    want = first.Generate(h.options, ends, 0, 0);
  }
  auto a = h.Submit(ends).value();
  auto b = h.Submit(goes_on).value();
  const Answer answer = h.Finish(*a);
  EXPECT_EQ(answer.tokens[0], want);
  EXPECT_THAT(answer.finish, ElementsAre(FinishReason::kStop));
  EXPECT_EQ(answer.last.session_position, first.position());
  EXPECT_EQ(h.Finish(*b).tokens[0], second.Generate(h.options, goes_on, 0, 0));
  EXPECT_GT(h.stats.ahead_steps.value(), 100);

  first.FeedPrompt({3});
  EXPECT_EQ(h.Generate(Greedy({3}, 50, "ends")).tokens[0],
            first.Generate(h.options, Greedy({3}, 50), 0, 0));
}

// A step that needs something of the host is not queued ahead.
TEST(EngineLoopAheadTest, WhatTheHostHasToSeeFirstIsWaitedFor) {
  const auto steps_ahead = [](const std::function<void(Request&)>& change) {
    HarnessOptions options = Asynchronous();
    options.byte_tokenizer = true;
    LoopHarness h(options);
    Request request = Greedy({1, 2}, 20);
    change(request);
    EXPECT_EQ(h.Generate(request).status(), absl::OkStatus());
    return h.stats.ahead_steps.value();
  };
  EXPECT_EQ(steps_ahead([](Request&) {}), 18);
  EXPECT_EQ(steps_ahead([](Request& r) { r.sampling = {.temperature = 2, .top_p = 0.9f}; }), 18);
  EXPECT_EQ(steps_ahead([](Request& r) { r.sampling.logit_bias = {{7, -100.0f}}; }), 18);
  EXPECT_EQ(steps_ahead([](Request& r) { r.logprobs = 2; }), 18);
  EXPECT_EQ(steps_ahead([](Request& r) { r.stop.stop_token_ids = {250, 251, 252, 253}; }), 18);
  EXPECT_EQ(steps_ahead([](Request& r) { r.stop.stop_token_ids = {249, 250, 251, 252, 253}; }), 0);
  EXPECT_EQ(steps_ahead([](Request& r) { r.stop.stop_strings = {"no such text"}; }), 0);
  EXPECT_EQ(steps_ahead([](Request& r) { r.sampling.repetition_penalty = 1.1f; }), 0);
  EXPECT_EQ(steps_ahead([](Request& r) {
              r.stop.stop_token_ids = {250};
              r.stop.min_tokens = 10;
            }),
            9);
}

// Somebody who comes has the loop between two steps after the one that is ahead.
TEST(EngineLoopAheadTest, ARequestThatComesWaitsForOneStepMore) {
  LoopHarness h(Asynchronous());
  auto running = h.Submit(Greedy({1}, 100)).value();
  for (int turn = 0; turn < 5; ++turn) h.Turn();
  const size_t before = h.rows_per_step.size();
  auto coming = h.Submit(Greedy({2}, 3)).value();
  h.Turn();
  EXPECT_EQ(h.rows_per_step.size(), before) << "no further one begins";
  h.Turn();
  ASSERT_EQ(h.rows_per_step.size(), before + 1);
  EXPECT_EQ(h.rows_per_step.back(), 2);
  EXPECT_EQ(h.Finish(*coming).tokens[0].size(), 3);
  EXPECT_EQ(h.Finish(*running).tokens[0].size(), 100);
}

// A row that waits for another's end does not keep the others from running ahead.
TEST(EngineLoopAheadTest, StepsRunAheadWhileOthersWait) {
  HarnessOptions options = Asynchronous();
  options.engine.max_rows = 1;
  LoopHarness h(options);
  auto first = h.Submit(Greedy({1}, 50)).value();
  auto second = h.Submit(Greedy({2}, 50)).value();
  EXPECT_EQ(h.Finish(*first).tokens[0].size(), 50);
  EXPECT_EQ(h.stats.ahead_steps.value(), 48);
  EXPECT_EQ(h.Finish(*second).tokens[0].size(), 50);
}

TEST(EngineLoopAheadTest, ASlowReaderGetsThreeEventsMoreThanItsStreamHolds) {
  HarnessOptions options = Asynchronous();
  options.engine.stream_capacity_events = 6;
  LoopHarness h(options);
  auto stream = h.Submit(Greedy({1}, 100)).value();
  h.TurnUntilQuiet();
  EXPECT_EQ(h.stats.requests_paused.value(), 1);
  int events = 0;
  while (stream->TryNext().has_value()) ++events;
  EXPECT_GE(events, 6);
  EXPECT_LE(events, 9);
}

// Nothing wakes the loop when time has come: the next step must not be queued for ever.
TEST(EngineLoopAheadTest, DeadlinesOfRunningPausedAndWaitingRequestsAreKept) {
  HarnessOptions options = Asynchronous();
  options.engine.max_rows = 2;
  options.engine.stream_capacity_events = 4;
  LoopHarness h(options);
  const auto with_deadline = [&](int prompt, int milliseconds) {
    Request request = Greedy({prompt}, 4000);
    request.deadline = h.clock.Monotonic() + absl::Milliseconds(milliseconds);
    return h.Submit(std::move(request)).value();
  };
  const auto read = with_deadline(1, 60), unread = with_deadline(2, 100);
  auto forever = h.Submit(Greedy({3}, 4000)).value();
  auto too_late = with_deadline(4, 140);
  Answer read_answer, other;
  for (int turn = 0; turn < 200; ++turn) {  // a millisecond each
    h.Turn();
    LoopHarness::Read(*read, read_answer);
    LoopHarness::Read(*forever, other);
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(read_answer.status()));
  EXPECT_EQ(h.stats.finished_by(FinishReason::kDeadline).value(), 3);
  EXPECT_GT(other.tokens.at(0).size(), 20);
  EXPECT_GT(h.stats.ahead_steps.value(), 50);
  for (const auto& stream : {unread, too_late}) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(h.Finish(*stream).status()));
  }
}

TEST(EngineLoopAheadTest, SessionsExpireWhileOthersRunAhead) {
  LoopHarness h(Asynchronous());
  Request short_lived = Greedy({1}, 3, "short");
  short_lived.session_ttl = absl::Milliseconds(50);
  ASSERT_EQ(h.Generate(short_lived).status(), absl::OkStatus());
  auto running = h.Submit(Greedy({2}, 4000)).value();
  for (int turn = 0; turn < 100; ++turn) h.Turn();
  EXPECT_TRUE(absl::IsNotFound(h.loop->commands().Get({"", "short"}).status()));
}

// The tokens that a session was fed are on record, those of steps ahead included.
TEST(EngineLoopAheadTest, AConversationThatIsSentAgainWholeIsRecognised) {
  HarnessOptions options = Asynchronous();
  options.byte_tokenizer = true;
  LoopHarness h(options);
  const Answer first = h.Generate(Greedy({1, 2}, 30, "s"));
  ASSERT_GT(h.stats.ahead_steps.value(), 20);
  std::vector<int32_t> whole = {1, 2};
  whole.insert(whole.end(), first.tokens[0].begin(), first.tokens[0].end());
  whole.push_back(5);
  Request again = Greedy(whole, 3, "s");
  again.whole_history = true;
  const Answer second = h.Generate(again);
  EXPECT_EQ(second.status(), absl::OkStatus()) << second.status();
  EXPECT_EQ(second.last.usage.resumed_tokens, 31) << "all that was fed";
}

TEST(EngineLoopAheadTest, RowsThatHadEndedAreNotCounted) {
  HarnessOptions options = Asynchronous();
  options.end_tokens = {0};
  LoopHarness h(options);
  int64_t tokens = 0;
  for (int prompt = 0; prompt < options.vocab; ++prompt) {
    tokens += static_cast<int64_t>(h.Generate(Greedy({prompt}, 300)).tokens[0].size());
  }
  h.TurnUntilQuiet();
  EXPECT_GT(h.stats.step_seconds.count(), tokens) << "some steps were of nobody";
  EXPECT_EQ(h.stats.decode_rows.sum(), tokens);
  EXPECT_EQ(h.stats.tokens_per_step.sum(), tokens);
  EXPECT_EQ(h.stats.state_bytes.value(), 2 * h.pool->slab_bytes() * tokens);
}

// A failure ends the sessions of the step in flight and of the one ahead. The draws of both steps
// are taken, so that further steps find their own.
TEST(EngineLoopAheadTest, AFailureSpoilsTheSessionsInItAndNoOther) {
  HarnessOptions options = Asynchronous();
  options.engine.stream_capacity_events = 8;
  LoopHarness h(options);
  auto paused = h.Submit(Greedy({2}, 50, "paused")).value();
  h.TurnUntilQuiet();  // its reader sleeps
  auto hit = h.Submit(Greedy({1}, 100, "hit")).value();
  Answer answer;
  for (int turn = 0; turn < 8; ++turn) {
    h.Turn();
    LoopHarness::Read(*hit, answer);
  }
  ASSERT_GT(h.stats.ahead_steps.value(), 0);
  h.backend.FailNext(absl::InternalError("ECC"));
  EXPECT_TRUE(absl::IsInternal(h.Finish(*hit).status()));
  EXPECT_TRUE(absl::IsNotFound(h.loop->commands().Get({"", "hit"}).status()));
  OracleSession oracle;
  oracle.FeedPrompt({2});
  EXPECT_EQ(h.Finish(*paused).tokens[0], oracle.Generate(h.options, Greedy({2}, 50), 0, 0));
  h.TurnUntilQuiet();
}

TEST(EngineLoopAheadTest, AnEndOfAllTakesTheTokensOfTheStepUnderWay) {
  LoopHarness h(Asynchronous());
  const Request request = Greedy({1}, 100, "s");
  auto stream = h.Submit(request).value();
  for (int turn = 0; turn < 5; ++turn) h.Turn();
  h.loop->EndAll(absl::UnavailableError("over"));
  Answer answer;
  LoopHarness::Read(*stream, answer);
  EXPECT_TRUE(absl::IsUnavailable(answer.status()));
  EXPECT_EQ(answer.tokens[0].size(), h.rows_per_step.size()) << "one of each step";
  EXPECT_EQ(h.loop->commands().Get({"", "s"})->position,
            1 + static_cast<int>(h.rows_per_step.size()));
  EXPECT_EQ(h.loop->CheckIntegrity(), absl::OkStatus());
}

}  // namespace
}  // namespace mneme
