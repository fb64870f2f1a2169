// Answers of the engine's loop against the oracle: sessions, choices, statistics.
#include "engine/engine_loop.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/loop_harness.h"

namespace mneme {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// --- Answers and sessions ---

TEST(EngineLoopTest, AnAnswerIsWhatTheModelSays) {
  LoopHarness h;
  const Request request = Greedy({1, 2, 3}, 10);
  OracleSession oracle;
  oracle.FeedPrompt({1, 2, 3});
  const Answer answer = h.Generate(request);
  ASSERT_EQ(answer.status(), absl::OkStatus());
  EXPECT_EQ(answer.tokens[0], oracle.Generate(h.options, request, 0, 0));
  EXPECT_EQ(answer.finish[0], FinishReason::kLength);
  EXPECT_EQ(answer.last.usage.prompt_tokens, 3);
  EXPECT_EQ(answer.last.usage.completion_tokens, 10);
  EXPECT_EQ(answer.last.usage.fed_tokens, 12) << "the last token is pending";
  EXPECT_EQ(answer.last.session_position, 13);
  EXPECT_TRUE(answer.last.has_pending_token);
  ASSERT_TRUE(answer.start.has_value());
  EXPECT_EQ(answer.start->usage.prompt_tokens, 3);
  EXPECT_EQ(h.pool->used_slots(), 0);
}

TEST(EngineLoopTest, AContinuedSessionEqualsAFreshOneFedAllIds) {
  LoopHarness h;
  const Answer first = h.Generate(Greedy({1, 2, 3}, 4, "s"));
  Request next = Greedy({4, 5}, 6, "s");
  next.sampling.temperature = 1;
  next.sampling.seed = 99;
  next.logprobs = 2;
  const Answer second = h.Generate(next);

  std::vector<int32_t> all = {1, 2, 3};
  all.insert(all.end(), first.tokens[0].begin(), first.tokens[0].end());
  all.insert(all.end(), {4, 5});
  Request whole = next;
  whole.session = {};
  whole.prompt = {all, all};
  const Answer fresh = h.Generate(whole);
  EXPECT_EQ(second.tokens[0], fresh.tokens[0]);
  ASSERT_EQ(second.logprobs[0].size(), fresh.logprobs[0].size());
  for (size_t i = 0; i < fresh.logprobs[0].size(); ++i) {
    EXPECT_EQ(second.logprobs[0][i].logprob, fresh.logprobs[0][i].logprob) << "bit for bit";
  }
  EXPECT_EQ(second.start->usage.resumed_tokens, 6) << "3 and 3; the fourth was pending";
  EXPECT_EQ(second.last.session_position, fresh.last.session_position);
}

TEST(EngineLoopTest, AnEmptyPromptGoesOnFromThePendingToken) {
  LoopHarness h;
  const Answer whole = h.Generate(Greedy({1, 2}, 8));
  const Answer first = h.Generate(Greedy({1, 2}, 3, "s"));
  const Answer rest = h.Generate(Greedy({}, 5, "s"));
  std::vector<int32_t> joined = first.tokens[0];
  joined.insert(joined.end(), rest.tokens[0].begin(), rest.tokens[0].end());
  EXPECT_EQ(joined, whole.tokens[0]);
}

TEST(EngineLoopTest, AnEmptyPromptWithoutAPendingTokenIsRefused) {
  LoopHarness h;
  EXPECT_EQ(FieldOf(h.Generate(Greedy({}, 3, "new")).status()), "text");
  EXPECT_TRUE(absl::IsNotFound(h.loop->commands().Get(Key("new")).status()));
  // All was fed, nothing sampled.
  const Answer fed = h.Generate(Greedy({1, 2}, 0, "s"));
  EXPECT_EQ(fed.status(), absl::OkStatus());
  EXPECT_EQ(fed.finish[0], FinishReason::kLength);
  EXPECT_FALSE(fed.last.has_pending_token);
  EXPECT_EQ(fed.last.session_position, 2);
  const Answer refused = h.Generate(Greedy({}, 3, "s"));
  EXPECT_EQ(FieldOf(refused.status()), "text");
  EXPECT_EQ(PositionOf(refused.status()), 2);
  EXPECT_EQ(h.Generate(Greedy({3}, 4, "s")).tokens[0], h.Generate(Greedy({1, 2, 3}, 4)).tokens[0]);
}

TEST(EngineLoopTest, AnEndTokenStaysPendingAndIsFedWhenTheSessionGoesOn) {
  HarnessOptions options;
  options.end_tokens = {0};
  options.first_token_bonus = 100;
  LoopHarness h(options);
  const Answer first = h.Generate(Greedy({1}, 5, "s"));
  EXPECT_THAT(first.tokens[0], ElementsAre(0));
  EXPECT_EQ(first.finish[0], FinishReason::kStop);
  EXPECT_EQ(first.stop_matched[0], "0");
  EXPECT_EQ(first.last.session_position, 2);
  Request next = Greedy({2}, 3, "s");
  next.stop.ignore_eos = true;
  const Answer second = h.Generate(next);
  EXPECT_EQ(second.last.usage.fed_tokens, 4) << "end token, prompt, and two of three";
  EXPECT_EQ(second.last.session_position, 6);
}

TEST(EngineLoopTest, TheReadingOfAPromptFollowsThePosition) {
  LoopHarness h;
  Request request = Greedy({}, 2, "s");
  request.prompt = {/*at_start=*/{9, 1}, /*continued=*/{1}};
  EXPECT_EQ(h.Generate(request).last.usage.prompt_tokens, 2);
  EXPECT_EQ(h.Generate(request).last.usage.prompt_tokens, 2) << "the pending token, and the prompt";
}

TEST(EngineLoopTest, AReadingThatThereIsNotIsRefusedWhereItIsNeeded) {
  LoopHarness h;
  Request first = Greedy({}, 2, "s");
  first.prompt.at_start = {9, 1};
  first.prompt.continued_status = absl::InvalidArgumentError("not behind an answer");
  Request second = Greedy({}, 2, "s");
  second.prompt.continued = {1};
  second.prompt.at_start_status = absl::InvalidArgumentError("not at the start");
  EXPECT_EQ(h.Generate(second).status().message(), "not at the start");
  EXPECT_EQ(h.Generate(first).last.usage.prompt_tokens, 2);
  EXPECT_EQ(h.Generate(first).status().message(), "not behind an answer");
  EXPECT_EQ(h.Generate(second).last.usage.prompt_tokens, 2) << "the pending token, and the prompt";
}

TEST(EngineLoopTest, AForkGoesItsOwnWayFromTheSamePlace) {
  LoopHarness h;
  h.Generate(Greedy({1, 2, 3}, 2, "parent"));
  const auto info = h.loop->commands().Fork(Key("parent"), Key("child"), absl::ZeroDuration());
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->position, 5);
  EXPECT_TRUE(info->has_pending_token);
  const Answer child = h.Generate(Greedy({7}, 4, "child"));
  const Answer parent = h.Generate(Greedy({7}, 4, "parent"));
  EXPECT_EQ(child.tokens[0], parent.tokens[0]);
  EXPECT_NE(h.Generate(Greedy({8}, 6, "child")).tokens[0],
            h.Generate(Greedy({9}, 6, "parent")).tokens[0]);
}

TEST(EngineLoopTest, PenaltiesSeeTheHistoryThatWasForked) {
  LoopHarness h;
  Request request = Greedy({1, 2, 3}, 6, "a");
  request.sampling.repetition_penalty = 3;
  request.sampling.frequency_penalty = 2;
  h.Generate(request);
  ASSERT_TRUE(h.loop->commands().Fork(Key("a"), Key("b"), absl::ZeroDuration()).ok());
  request.prompt = {};
  const Answer a = h.Generate(request);
  request.session.name = "b";
  EXPECT_EQ(h.Generate(request).tokens[0], a.tokens[0]);
}

TEST(EngineLoopTest, SessionsOfOwnersDoNotMeet) {
  LoopHarness h;
  Request mine = Greedy({1}, 2, "s"), yours = Greedy({1}, 2, "s");
  mine.session.owner = "me";
  yours.session.owner = "you";
  yours.create_session = false;
  EXPECT_EQ(h.Generate(mine).status(), absl::OkStatus());
  EXPECT_TRUE(absl::IsNotFound(h.Generate(yours).status()));
  EXPECT_EQ(ListSessions(*h.loop, "me", "").size(), 1);
  EXPECT_THAT(ListSessions(*h.loop, "", ""), IsEmpty());
}

// --- n ---

TEST(EngineLoopTest, ChoicesAreKeyedBySeedAndIndex) {
  LoopHarness h;
  Request request = Greedy({1, 2, 3, 4}, 6, "s");
  request.sampling.temperature = 2;
  request.sampling.seed = 5;
  request.n = 3;
  const Answer answer = h.Generate(request);
  ASSERT_EQ(answer.status(), absl::OkStatus());
  std::set<std::vector<int32_t>> different;
  for (int choice = 0; choice < 3; ++choice) {
    OracleSession oracle;
    oracle.FeedPrompt({1, 2, 3, 4});
    EXPECT_EQ(answer.tokens[choice], oracle.Generate(h.options, request, 5, choice)) << choice;
    different.insert(answer.tokens[choice]);
  }
  EXPECT_GT(different.size(), 1);
  EXPECT_EQ(h.pool->used_slots(), 1) << "choice 0 goes on as the session";
  // Three of the prompt once, then the last one and five of six answers for each.
  EXPECT_EQ(answer.last.usage.fed_tokens, 3 + 3 * 6);
  Request alone = request;
  alone.n = 1;
  alone.session = {};
  EXPECT_EQ(h.Generate(alone).tokens[0], answer.tokens[0]) << "n does not change choice 0";
}

TEST(EngineLoopTest, MoreChoicesThanSlabsAreRefusedAtOnce) {
  LoopHarness h;
  Request request = Greedy({1}, 1);
  request.n = 5;
  EXPECT_EQ(FieldOf(h.Submit(request).status()), "response.n");
}

TEST(EngineLoopTest, ChoicesWithoutTokensEndAtOnce) {
  LoopHarness h;
  Request request = Greedy({1, 2}, 0);
  request.n = 3;
  const Answer answer = h.Generate(request);
  EXPECT_EQ(answer.status(), absl::OkStatus());
  EXPECT_THAT(answer.finish,
              ElementsAre(FinishReason::kLength, FinishReason::kLength, FinishReason::kLength));
  EXPECT_EQ(answer.last.usage.fed_tokens, 2);
}

// --- When tokens come ---

TEST(EngineLoopTest, TokensComeInTheTurnThatDrawsThem) {
  LoopHarness h;
  auto stream = h.Submit(Greedy({1}, 3)).value();
  Answer answer;
  for (size_t turn = 1; turn <= 3; ++turn) {
    h.Turn();
    LoopHarness::Read(*stream, answer);
    EXPECT_EQ(answer.tokens.at(0).size(), turn);
  }
  EXPECT_TRUE(answer.ended);
}

TEST(EngineLoopTest, TokensComeWhileAnAsynchronousDeviceRunsTheNextStep) {
  HarnessOptions options = {.asynchronous = true};
  options.engine.graphs = true;
  options.engine.async_scheduling = false;
  LoopHarness h(options);
  auto stream = h.Submit(Greedy({1}, 3)).value();
  Answer answer;
  h.Turn();
  LoopHarness::Read(*stream, answer);
  ASSERT_TRUE(answer.start.has_value());
  EXPECT_THAT(answer.tokens, IsEmpty());
  h.on_step = [&] {
    LoopHarness::Read(*stream, answer);
    EXPECT_THAT(answer.tokens, IsEmpty()) << "the device waits for nobody's token";
  };
  h.Turn();
  h.on_step = nullptr;
  LoopHarness::Read(*stream, answer);
  EXPECT_EQ(answer.tokens.at(0).size(), 1);
  h.Turn();
  LoopHarness::Read(*stream, answer);
  EXPECT_EQ(answer.tokens.at(0).size(), 2) << "an end is no exception";
  h.Turn();  // no step is left
  LoopHarness::Read(*stream, answer);
  EXPECT_EQ(answer.tokens.at(0).size(), 3);
  EXPECT_TRUE(answer.ended);
}

// Such a launch takes milliseconds, and not always as many.
TEST(EngineLoopTest, TokensComeBeforeAStepIsLaunchedKernelByKernel) {
  HarnessOptions options = {.asynchronous = true};
  options.engine.graphs = true;
  options.engine.async_scheduling = false;
  LoopHarness h(options);
  auto stream = h.Submit(Greedy({1}, 20)).value();
  Answer answer;
  for (int turn = 0; turn < 3; ++turn) h.Turn();
  LoopHarness::Read(*stream, answer);
  ASSERT_EQ(answer.tokens.at(0).size(), 2) << "the third turn's come with the next step";
  auto prompt = h.Submit(Greedy({1, 2, 3, 4, 5, 6, 7, 8}, 1)).value();
  int mixed_steps = 0;
  h.on_step = [&] {
    if (h.rows_per_step.back() < 2) return;
    ++mixed_steps;
    LoopHarness::Read(*stream, answer);
    EXPECT_EQ(answer.tokens.at(0).size(), h.stats.step_seconds.count()) << "one from each step";
  };
  for (int turn = 0; turn < 4; ++turn) h.Turn();
  EXPECT_GT(mixed_steps, 0);
}

// Clients wait for the whole time between the tokens of two steps, however little of it is the
// step.
TEST(EngineLoopTest, APromptHasLessWhereTimePassesBetweenItsSteps) {
  const auto steps_of_prompt = [](absl::Duration between) {
    HarnessOptions options;
    options.engine.max_tokens_per_step = 512;
    LoopHarness h(options);
    auto stream = h.Submit(Greedy({1}, 900)).value();
    for (int turn = 0; turn < 40; ++turn) h.Turn();
    auto prompt = h.Submit(Greedy(std::vector<int32_t>(1000, 2), 1)).value();
    Answer answer;
    int turns = 0;
    for (; !answer.ended && turns < 800; ++turns) {
      h.Turn();
      h.clock.Advance(between);
      LoopHarness::Read(*prompt, answer);
    }
    return turns;
  };
  const int at_once = steps_of_prompt(absl::ZeroDuration());
  EXPECT_LE(at_once, 10) << "all steps take the same time, so these grow";
  EXPECT_GE(steps_of_prompt(absl::Milliseconds(2)), 4 * at_once) << "3 ms are more than 2.7";
}

TEST(EngineLoopTest, WhatWasDrawnComesBeforeAnEndThatComesBetweenSteps) {
  struct Case {
    bool asynchronous, ahead;
    int tokens;  // of three turns, and of the step that is ahead
  };
  for (const Case c : {Case{false, false, 3}, {true, false, 3}, {true, true, 4}}) {
    HarnessOptions options = {.asynchronous = c.asynchronous};
    options.engine.async_scheduling = c.ahead;
    LoopHarness h(options);
    OracleSession oracle;
    oracle.FeedPrompt({1});
    const Request request = Greedy({1}, 50, "s");
    std::vector<int32_t> want = oracle.Generate(h.options, request, 0, 0);
    want.resize(c.tokens);
    auto stream = h.Submit(request).value();
    for (int turn = 0; turn < 3; ++turn) h.Turn();
    stream->Cancel();
    const Answer answer = h.Finish(*stream);
    EXPECT_TRUE(absl::IsCancelled(answer.status()));
    EXPECT_EQ(answer.tokens.at(0), want);
    EXPECT_EQ(answer.last.session_position, 1 + c.tokens);
    EXPECT_EQ(h.loop->commands().Get(Key("s"))->position, 1 + c.tokens);
    h.TurnUntilQuiet();
  }
}

// --- What is counted ---

TEST(EngineLoopTest, StatisticsAddUp) {
  LoopHarness h;
  auto a = h.Submit(Greedy({1, 2, 3}, 5)).value();
  auto b = h.Submit(Greedy({4}, 5)).value();
  h.TurnUntilQuiet();
  EXPECT_EQ(h.stats.prompt_tokens.value(), 4);
  EXPECT_EQ(h.stats.generated_tokens.value(), 10);
  EXPECT_EQ(h.stats.finished_by(FinishReason::kLength).value(), 2);
  EXPECT_EQ(h.stats.step_seconds.count(), h.rows_per_step.size());
  EXPECT_EQ(h.stats.first_token_seconds.count(), 2);
  EXPECT_EQ(h.stats.inter_token_seconds.count(), 8);
  EXPECT_NEAR(h.stats.inter_token_seconds.mean(), 0.001, 1e-9);
  EXPECT_EQ(h.stats.slabs_total.value(), 4);
  EXPECT_EQ(h.stats.slabs_used.value(), 0);
}

// Slow readers lend their rows to others, so that all have begun when they read again.
TEST(EngineLoopTest, MoreSequencesThanRowsTakeTurns) {
  for (const bool asynchronous : {false, true}) {
    SCOPED_TRACE(asynchronous);
    HarnessOptions options = {.slots = 8, .asynchronous = asynchronous};
    options.engine.max_rows = 2;
    options.engine.stream_capacity_events = 4;
    LoopHarness h(options);
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (int i = 0; i < 8; ++i) streams.push_back(h.Submit(Greedy({i}, 40)).value());
    h.TurnUntilQuiet();
    ASSERT_EQ(h.stats.requests_running.value(), 8);
    EXPECT_EQ(h.stats.requests_paused.value(), 8);
    std::vector<Answer> answers(8);
    for (int i = 0; i < 8; ++i) LoopHarness::Read(*streams[i], answers[i]);
    answers = std::vector<Answer>(8);
    for (int turn = 0; turn < 48; ++turn) {
      h.Turn();
      for (int i = 0; i < 8; ++i) LoopHarness::Read(*streams[i], answers[i]);
    }
    size_t least = 100, most = 0;
    for (const Answer& answer : answers) {
      const size_t said = answer.tokens.empty() ? 0 : answer.tokens[0].size();
      least = std::min(least, said);
      most = std::max(most, said);
    }
    EXPECT_GE(least, 10) << "of 12 fair ones";
    EXPECT_LE(most, 13);
  }
}

}  // namespace
}  // namespace mneme
