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

// What the next step needs of the host keeps it from running ahead.
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

TEST(EngineLoopAheadTest, AFailureSpoilsTheSessionsOfBothSteps) {
  LoopHarness h(Asynchronous());
  auto stream = h.Submit(Greedy({1}, 100, "s")).value();
  for (int turn = 0; turn < 5; ++turn) h.Turn();
  ASSERT_GT(h.stats.ahead_steps.value(), 0);
  h.backend.FailNext(absl::InternalError("ECC"));
  EXPECT_TRUE(absl::IsInternal(h.Finish(*stream).status()));
  EXPECT_TRUE(absl::IsNotFound(h.loop->GetSession({"", "s"}).status()));
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
  EXPECT_EQ(h.loop->GetSession({"", "s"})->position, 1 + static_cast<int>(h.rows_per_step.size()));
  EXPECT_EQ(h.loop->CheckIntegrity(), absl::OkStatus());
}

}  // namespace
}  // namespace mneme
