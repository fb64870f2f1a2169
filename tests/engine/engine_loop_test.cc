#include "engine/engine_loop.h"

#include <cmath>
#include <set>

#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/loop_harness.h"

namespace mneme {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

SessionKey Key(std::string name) { return {"", std::move(name)}; }

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
  EXPECT_TRUE(absl::IsNotFound(h.loop->GetSession(Key("new")).status()));
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
  EXPECT_EQ(h.Generate(request).last.usage.prompt_tokens, 1);
}

TEST(EngineLoopTest, AForkGoesItsOwnWayFromTheSamePlace) {
  LoopHarness h;
  h.Generate(Greedy({1, 2, 3}, 2, "parent"));
  const auto info = h.loop->ForkSession(Key("parent"), Key("child"), absl::ZeroDuration());
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
  ASSERT_TRUE(h.loop->ForkSession(Key("a"), Key("b"), absl::ZeroDuration()).ok());
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
  EXPECT_EQ(h.loop->ListSessions("me", "").size(), 1);
  EXPECT_THAT(h.loop->ListSessions("", ""), IsEmpty());
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

// --- Room ---

TEST(EngineLoopTest, ARequestWaitsForASlabThatWillBeFreed) {
  HarnessOptions options;
  options.slots = 1;
  LoopHarness h(options);
  auto first = h.Submit(Greedy({1}, 5)).value();
  auto second = h.Submit(Greedy({2}, 5)).value();
  h.Turn();
  EXPECT_EQ(h.stats.requests_waiting.value(), 1);
  EXPECT_EQ(h.Finish(*second).status(), absl::OkStatus());
  EXPECT_EQ(h.Finish(*first).status(), absl::OkStatus());
}

TEST(EngineLoopTest, WhereIdleSessionsHoldEverySlabARequestIsRefusedWithTheTimeToExpiry) {
  HarnessOptions options;
  options.slots = 2;
  LoopHarness h(options);
  ASSERT_TRUE(h.loop->CreateSession(Key("a"), absl::Seconds(20)).ok());
  ASSERT_TRUE(h.loop->CreateSession(Key("b"), absl::InfiniteDuration()).ok());
  const Answer refused = h.Generate(Greedy({1}, 1));
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status()));
  EXPECT_EQ(ReasonOf(refused.status()), kReasonNoFreeSlab);
  EXPECT_EQ(RetryAfterOf(refused.status()), absl::Seconds(20));
  EXPECT_TRUE(
      absl::IsResourceExhausted(h.loop->CreateSession(Key("c"), absl::ZeroDuration()).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(
      h.loop->ForkSession(Key("a"), Key("c"), absl::ZeroDuration()).status()));
  EXPECT_EQ(h.Generate(Greedy({1}, 1, "a")).status(), absl::OkStatus()) << "has its slab";
  h.clock.Advance(absl::Seconds(30));
  EXPECT_EQ(h.Generate(Greedy({1}, 1)).status(), absl::OkStatus()) << "a has expired";
}

TEST(EngineLoopTest, AWaitingRequestIsRefusedWhenTheLastHopeIsGone) {
  HarnessOptions options;
  options.slots = 1;
  LoopHarness h(options);
  auto running = h.Submit(Greedy({1}, 3)).value();
  auto named = h.Submit(Greedy({1}, 3, "keeps-it")).value();
  auto late = h.Submit(Greedy({1}, 3)).value();
  EXPECT_EQ(h.Finish(*named).status(), absl::OkStatus());
  EXPECT_TRUE(absl::IsResourceExhausted(h.Finish(*late).status()));
}

TEST(EngineLoopTest, ALargeRequestIsNotStarvedBySmallOnes) {
  LoopHarness h;
  std::vector<std::shared_ptr<TokenStream>> small;
  for (int i = 0; i < 4; ++i) small.push_back(h.Submit(Greedy({1}, 4 + i)).value());
  h.Turn();
  Request large = Greedy({2}, 3);
  large.n = 4;
  auto stream = h.Submit(large).value();
  Answer answer;
  for (int turn = 0; turn < 200 && !answer.ended; ++turn) {
    small.push_back(h.Submit(Greedy({1}, 4)).value());  // ever more of them
    h.Turn();
    LoopHarness::Read(*stream, answer);
    if (h.stats.requests_waiting.value() > 10) small.clear();  // their readers leave
  }
  EXPECT_TRUE(answer.ended);
  EXPECT_EQ(answer.status(), absl::OkStatus());
}

TEST(EngineLoopTest, PriorityGoesFirstThenArrival) {
  HarnessOptions options;
  options.slots = 1;
  LoopHarness h(options);
  auto blocker = h.Submit(Greedy({1}, 3)).value();
  h.Turn();
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (const int priority : {0, 5, 0, 5}) {
    Request request = Greedy({1}, 2);
    request.priority = priority;
    streams.push_back(h.Submit(request).value());
  }
  std::vector<int> order;
  std::vector<Answer> answers(4);
  for (int turn = 0; turn < 100; ++turn) {
    h.Turn();
    for (int i = 0; i < 4; ++i) {
      const bool before = answers[i].ended;
      LoopHarness::Read(*streams[i], answers[i]);
      if (answers[i].ended && !before) order.push_back(i);
    }
  }
  EXPECT_THAT(order, ElementsAre(1, 3, 0, 2));
}

TEST(EngineLoopTest, AFullQueueIsRefusedWithAHint) {
  HarnessOptions options;
  options.slots = 2;
  options.engine.max_queued_requests = 2;
  LoopHarness h(options);
  ASSERT_TRUE(h.loop->CreateSession(Key("has-a-slab"), absl::InfiniteDuration()).ok());
  auto running = h.Submit(Greedy({1}, 20)).value();
  h.Turn();
  auto a = h.Submit(Greedy({1}, 1)).value(), b = h.Submit(Greedy({1}, 1)).value();
  h.Turn();
  EXPECT_EQ(h.stats.requests_waiting.value(), 2);
  const Answer refused = h.Generate(Greedy({1}, 1));
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status()));
  EXPECT_EQ(ReasonOf(refused.status()), kReasonQueueFull);
  EXPECT_TRUE(RetryAfterOf(refused.status()).has_value());
  EXPECT_EQ(h.stats.rejected_by(absl::StatusCode::kResourceExhausted).value(), 1);
  EXPECT_EQ(h.Generate(Greedy({1}, 1, "has-a-slab")).status(), absl::OkStatus())
      << "needs no slab, so it does not queue";
  EXPECT_EQ(h.Finish(*a).status(), absl::OkStatus());
  EXPECT_EQ(h.Finish(*b).status(), absl::OkStatus());
  EXPECT_EQ(h.Generate(Greedy({1}, 1)).status(), absl::OkStatus());
}

// --- Busy sessions ---

TEST(EngineLoopTest, ASecondWriterIsAbortedAndNamesTheSession) {
  LoopHarness h;
  auto first = h.Submit(Greedy({1}, 5, "s")).value();
  const Answer second = h.Generate(Greedy({2}, 5, "s"));
  EXPECT_TRUE(absl::IsAborted(second.status()));
  EXPECT_EQ(ReasonOf(second.status()), kReasonSessionBusy);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("\"s\""));
  EXPECT_EQ(h.Finish(*first).status(), absl::OkStatus());
  EXPECT_EQ(h.Generate(Greedy({2}, 5, "s")).status(), absl::OkStatus());
}

TEST(EngineLoopTest, ABusySessionIsNeitherDeletedNorForked) {
  LoopHarness h;
  auto stream = h.Submit(Greedy({1}, 5, "s")).value();
  h.Turn();
  EXPECT_TRUE(absl::IsFailedPrecondition(h.loop->DeleteSession(Key("s"))));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      h.loop->ForkSession(Key("s"), Key("t"), absl::ZeroDuration()).status()));
  EXPECT_TRUE(h.loop->GetSession(Key("s"))->busy);
  h.Finish(*stream);
  EXPECT_FALSE(h.loop->GetSession(Key("s"))->busy);
  EXPECT_EQ(h.loop->DeleteSession(Key("s")), absl::OkStatus());
  EXPECT_TRUE(absl::IsNotFound(h.loop->DeleteSession(Key("s"))));
}

TEST(EngineLoopTest, CommandsCheckNamesAndExistence) {
  LoopHarness h;
  EXPECT_EQ(FieldOf(h.loop->CreateSession(Key("a b"), absl::ZeroDuration()).status()), "name");
  EXPECT_EQ(FieldOf(h.loop->GetSession(Key("")).status()), "name");
  ASSERT_TRUE(h.loop->CreateSession(Key("a"), absl::ZeroDuration()).ok());
  EXPECT_TRUE(
      absl::IsAlreadyExists(h.loop->CreateSession(Key("a"), absl::ZeroDuration()).status()));
  EXPECT_TRUE(
      absl::IsNotFound(h.loop->ForkSession(Key("b"), Key("c"), absl::ZeroDuration()).status()));
}

// --- Time ---

TEST(EngineLoopTest, IdleSessionsExpireAndUseKeepsThemAlive) {
  LoopHarness h;
  ASSERT_TRUE(h.loop->CreateSession(Key("s"), absl::Seconds(10)).ok());
  ASSERT_TRUE(h.loop->CreateSession(Key("for-ever"), absl::InfiniteDuration()).ok());
  h.clock.Advance(absl::Seconds(9));
  h.Generate(Greedy({1}, 1, "s"));
  h.clock.Advance(absl::Seconds(9));
  h.Turn();
  EXPECT_TRUE(h.loop->GetSession(Key("s")).ok());
  h.clock.Advance(absl::Seconds(2));
  h.Turn();
  EXPECT_TRUE(absl::IsNotFound(h.loop->GetSession(Key("s")).status()));
  h.clock.Advance(absl::Hours(100'000));
  h.Turn();
  EXPECT_TRUE(h.loop->GetSession(Key("for-ever")).ok());
  EXPECT_EQ(h.pool->used_slots(), 1);
}

TEST(EngineLoopTest, AWaitingRequestExpiresBeforeItCostsAStep) {
  HarnessOptions options;
  options.slots = 1;
  LoopHarness h(options);
  auto running = h.Submit(Greedy({1}, 1000)).value();
  h.Turn();
  Request request = Greedy({2}, 5, "late");
  request.deadline = h.clock.Now() + absl::Seconds(1);
  auto stream = h.Submit(request).value();
  h.Turn();
  h.clock.Advance(absl::Seconds(2));
  stream->Cancel();  // as a call does that its client has left at the deadline
  const Answer answer = h.Finish(*stream);
  EXPECT_TRUE(absl::IsDeadlineExceeded(answer.status()));
  EXPECT_EQ(h.stats.finished_by(FinishReason::kDeadline).value(), 1);
  EXPECT_FALSE(answer.start.has_value());
  EXPECT_EQ(answer.last.usage.fed_tokens, 0);
  EXPECT_TRUE(absl::IsNotFound(h.loop->GetSession(Key("late")).status()));
}

TEST(EngineLoopTest, ARunningRequestThatExpiresKeepsExactlyWhatWasFed) {
  LoopHarness h;
  Request request = Greedy({1, 2}, 100, "s");
  request.deadline = h.clock.Now() + absl::Milliseconds(6);  // a step takes one
  const Answer cut = h.Generate(request);
  EXPECT_TRUE(absl::IsDeadlineExceeded(cut.status()));
  EXPECT_EQ(cut.finish[0], FinishReason::kDeadline);
  const auto count = static_cast<int64_t>(cut.tokens[0].size());
  EXPECT_GT(count, 0);
  EXPECT_EQ(cut.last.session_position, 2 + count);
  const Answer rest = h.Generate(Greedy({}, 5, "s"));
  std::vector<int32_t> joined = cut.tokens[0];
  joined.insert(joined.end(), rest.tokens[0].begin(), rest.tokens[0].end());
  EXPECT_EQ(joined, h.Generate(Greedy({1, 2}, static_cast<int>(joined.size()))).tokens[0]);
}

TEST(EngineLoopTest, CancellingInThePromptKeepsThePartThatWasFed) {
  LoopHarness h;
  const std::vector<int32_t> prompt(50, 3);
  auto stream = h.Submit(Greedy(prompt, 5, "s")).value();
  h.Turn();
  h.Turn();  // 16 tokens a step
  stream->Cancel();
  const Answer answer = h.Finish(*stream);
  EXPECT_TRUE(absl::IsCancelled(answer.status()));
  EXPECT_EQ(answer.last.session_position, 32);
  EXPECT_FALSE(answer.last.has_pending_token);
  Request rest = Greedy(std::vector<int32_t>(18, 3), 5, "s");
  rest.expected_position = 32;
  EXPECT_EQ(h.Generate(rest).tokens[0], h.Generate(Greedy(prompt, 5)).tokens[0]);
}

TEST(EngineLoopTest, DroppingTheStreamCancelsUnlessDetached) {
  LoopHarness h;
  (void)h.Submit(Greedy({1}, 100, "gone")).value();
  Request detached = Greedy({1}, 30, "stays");
  detached.detached = true;
  (void)h.Submit(detached).value();
  h.TurnUntilQuiet();
  EXPECT_TRUE(absl::IsNotFound(h.loop->GetSession(Key("gone")).status())) << "nothing was fed";
  EXPECT_EQ(h.loop->GetSession(Key("stays"))->position, 31);
  EXPECT_EQ(h.stats.requests_running.value(), 0);
}

// --- Back-pressure ---

TEST(EngineLoopTest, ASlowReaderStallsOnlyItself) {
  HarnessOptions options;
  options.engine.stream_capacity_events = 4;
  LoopHarness h(options);
  auto slow = h.Submit(Greedy({1}, 50)).value();
  auto quick = h.Submit(Greedy({2}, 50)).value();
  EXPECT_EQ(h.Finish(*quick).status(), absl::OkStatus());
  const size_t steps = h.rows_per_step.size();
  h.TurnUntilQuiet();
  EXPECT_LE(h.rows_per_step.size(), steps + 1) << "nothing runs while the reader sleeps";
  EXPECT_LE(h.stats.generated_tokens.value(), 50 + 5);
  const Answer answer = h.Finish(*slow);
  EXPECT_EQ(answer.tokens[0], h.Generate(Greedy({1}, 50)).tokens[0]);
}

TEST(EngineLoopTest, PromptLogprobsComeInBoundedSteps) {
  HarnessOptions options;
  options.engine.stream_capacity_events = 4;
  LoopHarness h(options);
  std::vector<int32_t> prompt;
  for (int i = 0; i < 200; ++i) prompt.push_back(i * 7 % 31);
  Request request = Greedy(prompt, 1);
  request.prompt_logprobs = 1;
  request.echo = true;
  auto stream = h.Submit(request).value();
  for (int i = 0; i < 50; ++i) h.Turn();
  EXPECT_LE(h.stats.prompt_tokens.value(), 5 * 8) << "8 scored tokens a step, 4 events";
  const Answer answer = h.Finish(*stream);
  EXPECT_EQ(answer.prompt_tokens, prompt);
  ASSERT_EQ(answer.prompt_logprobs.size(), 200);
  EXPECT_TRUE(std::isnan(answer.prompt_logprobs[0].logprob));
  FakeMemory memory;
  double worst = 0;
  for (int i = 1; i < 200; ++i) {
    memory.Feed(prompt[i - 1]);
    const std::vector<double> logits = memory.Logits(32);
    worst = std::max(
        worst, std::abs(answer.prompt_logprobs[i].logprob - OracleLogprob(logits, prompt[i])));
    ASSERT_EQ(answer.prompt_logprobs[i].top.size(), 1);
  }
  EXPECT_LE(worst, 1e-5);
}

TEST(EngineLoopTest, ALongPromptDoesNotStallDecoding) {
  LoopHarness h;
  auto decoding = h.Submit(Greedy({1}, 60)).value();
  h.Turn();
  auto prompt = h.Submit(Greedy(std::vector<int32_t>(300, 2), 1)).value();
  const size_t before = h.rows_per_step.size();
  EXPECT_EQ(h.Finish(*decoding).status(), absl::OkStatus());
  EXPECT_LE(h.rows_per_step.size() - before, 61) << "a token in each step";
  EXPECT_EQ(h.Finish(*prompt).status(), absl::OkStatus());
}

// --- Retries ---

TEST(EngineLoopTest, AnUnexpectedPositionIsAbortedWithThePosition) {
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

TEST(EngineLoopTest, ARepeatedKeyReplaysTheAnswerAndFeedsNothing) {
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

TEST(EngineLoopTest, AKeyOfARunningRequestIsAborted) {
  LoopHarness h;
  Request request = Greedy({1}, 6, "s");
  request.idempotency_key = "k";
  auto first = h.Submit(request).value();
  const Answer again = h.Generate(request);
  EXPECT_TRUE(absl::IsAborted(again.status()));
  EXPECT_EQ(ReasonOf(again.status()), kReasonKeyRunning);
  EXPECT_EQ(h.Finish(*first).status(), absl::OkStatus());
}

TEST(EngineLoopTest, AKeyOfABrokenRequestIsAbortedWithThePosition) {
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

TEST(EngineLoopTest, AKeyOfARequestThatFedNothingRunsNormally) {
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

TEST(EngineLoopTest, AKeyReusedForAnotherRequestIsInvalid) {
  LoopHarness h;
  Request request = Greedy({1, 2}, 3, "s");
  request.idempotency_key = "k";
  h.Generate(request);
  request.prompt.continued = {9};
  EXPECT_EQ(FieldOf(h.Generate(request).status()), "idempotency_key");
}

// --- Failing steps ---

TEST(EngineLoopTest, AFailingStepEndsItsRowsAndSparesTheOthers) {
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

TEST(EngineLoopTest, AStepThatTakesTooLongIsUnhealthy) {
  HarnessOptions options;
  absl::Status during;
  LoopHarness* harness = nullptr;
  options.step_time = absl::Minutes(6);
  LoopHarness h(options);
  harness = &h;
  h.on_step = [&] { during = harness->loop->health(); };
  h.Generate(Greedy({1}, 1));
  EXPECT_TRUE(absl::IsInternal(during));
  EXPECT_EQ(h.loop->health(), absl::OkStatus()) << "it came to an end";
}

TEST(EngineLoopTest, EndingTheLoopEndsWhatIsInFlight) {
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

// --- Text ---

HarnessOptions WithText() {
  HarnessOptions options;
  options.byte_tokenizer = true;
  options.end_tokens = {257};
  return options;
}

TEST(EngineLoopTextTest, TextIsWhatTheTokensDecodeTo) {
  LoopHarness h(WithText());
  Request request = Greedy({72, 105}, 200);
  request.sampling.temperature = 1;
  request.stop.ignore_eos = true;
  request.logprobs = 0;
  const Answer answer = h.Generate(request);
  EXPECT_EQ(answer.text[0], h.tokenizer->Decode(answer.tokens[0]).value());
  ASSERT_EQ(answer.logprobs[0].size(), 200);
}

TEST(EngineLoopTextTest, EchoAndAnswerJoinCharacters) {
  LoopHarness h(WithText());
  Request request = Greedy({72, 0xC3}, 3);  // "H" and half of an umlaut
  request.echo = true;
  request.sampling.logit_bias = {{0xA9, 100.0f}};
  const Answer answer = h.Generate(request);
  EXPECT_EQ(answer.prompt_text + answer.text[0].substr(0, 2), "H\xC3\xA9");
  std::vector<int32_t> all = {72, 0xC3};
  all.insert(all.end(), answer.tokens[0].begin(), answer.tokens[0].end());
  EXPECT_EQ(answer.prompt_text + answer.text[0], h.tokenizer->Decode(all).value());
}

TEST(EngineLoopTextTest, AStopStringIsTrimmedAndWhatWasFedIsReported) {
  LoopHarness h(WithText());
  Request plain = Greedy({1}, 40, "plain");
  plain.sampling.logit_bias = {{'a', 12.0f}, {'b', 12.0f}, {'c', 12.0f}};
  const Answer whole = h.Generate(plain);
  const std::string text = whole.text[0];
  const std::string stop = text.substr(10, 4);
  const size_t cut = text.find(stop);
  Request request = plain;
  request.session.name = "s";
  request.stop.stop_strings = {stop};
  const Answer answer = h.Generate(request);
  EXPECT_EQ(answer.text[0], text.substr(0, cut));
  EXPECT_EQ(answer.stop_matched[0], stop);
  EXPECT_EQ(answer.tokens[0].size(), cut + 4) << "one byte a token";
  EXPECT_EQ(answer.last.session_position, 1 + static_cast<int64_t>(cut) + 4);
  request.stop.include_stop_in_output = true;
  request.session.name = "t";
  EXPECT_EQ(h.Generate(request).text[0], text.substr(0, cut + 4));
}

TEST(EngineLoopTextTest, AnEndTokenIsNotText) {
  LoopHarness h(WithText());
  Request request = Greedy({65}, 5);
  request.sampling.logit_bias = {{257, 100.0f}};
  request.skip_special_tokens = false;
  const Answer answer = h.Generate(request);
  EXPECT_THAT(answer.tokens[0], ElementsAre(257));
  EXPECT_EQ(answer.text[0], "");
  EXPECT_EQ(answer.stop_matched[0], "257");
}

TEST(EngineLoopTextTest, TextThatIsHeldBackComesWithACancellation) {
  LoopHarness h(WithText());
  Request request = Greedy({1}, 1000, "s");
  request.sampling.logit_bias = {{'a', 100.0f}};
  request.stop.stop_strings = {"aaaaaaaaaaaaaaaaaaaaab"};
  auto stream = h.Submit(request).value();
  for (int i = 0; i < 10; ++i) h.Turn();
  stream->Cancel();
  const Answer answer = h.Finish(*stream);
  EXPECT_TRUE(absl::IsCancelled(answer.status()));
  EXPECT_EQ(answer.text[0], std::string(answer.tokens[0].size(), 'a'));
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

TEST(EngineLoopTest, MoreSequencesThanRowsTakeTurns) {
  HarnessOptions options;
  options.slots = 8;
  options.engine.max_rows = 2;
  LoopHarness h(options);
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int i = 0; i < 8; ++i) streams.push_back(h.Submit(Greedy({i}, 20)).value());
  std::vector<Answer> answers(8);
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

}  // namespace
}  // namespace mneme
