// Waiting in the engine's loop: for room, busy sessions, time, slow readers.
#include <cmath>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_loop.h"
#include "engine/request_check.h"
#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/loop_harness.h"

namespace mneme {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// --- Room ---

TEST(EngineLoopWaitingTest, ARequestWaitsForASlabThatWillBeFreed) {
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

TEST(EngineLoopWaitingTest, WhereIdleSessionsHoldEverySlabARequestIsRefusedWithTheTimeToExpiry) {
  HarnessOptions options;
  options.slots = 2;
  LoopHarness h(options);
  ASSERT_TRUE(h.loop->commands().Create(Key("a"), absl::Seconds(20)).ok());
  ASSERT_TRUE(h.loop->commands().Create(Key("b"), absl::InfiniteDuration()).ok());
  const Answer refused = h.Generate(Greedy({1}, 1));
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status()));
  EXPECT_EQ(ReasonOf(refused.status()), kReasonNoFreeSlab);
  EXPECT_EQ(RetryAfterOf(refused.status()), absl::Seconds(20));
  EXPECT_TRUE(absl::IsResourceExhausted(
      h.loop->commands().Create(Key("c"), absl::ZeroDuration()).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(
      h.loop->commands().Fork(Key("a"), Key("c"), absl::ZeroDuration()).status()));
  EXPECT_EQ(h.Generate(Greedy({1}, 1, "a")).status(), absl::OkStatus()) << "has its slab";
  h.clock.Advance(absl::Seconds(30));
  EXPECT_EQ(h.Generate(Greedy({1}, 1)).status(), absl::OkStatus()) << "a has expired";
}

TEST(EngineLoopWaitingTest, AWaitingRequestIsRefusedWhenTheLastHopeIsGone) {
  HarnessOptions options;
  options.slots = 1;
  LoopHarness h(options);
  auto running = h.Submit(Greedy({1}, 3)).value();
  auto named = h.Submit(Greedy({1}, 3, "keeps-it")).value();
  auto late = h.Submit(Greedy({1}, 3)).value();
  EXPECT_EQ(h.Finish(*named).status(), absl::OkStatus());
  EXPECT_TRUE(absl::IsResourceExhausted(h.Finish(*late).status()));
}

TEST(EngineLoopWaitingTest, ALargeRequestIsNotStarvedBySmallOnes) {
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

TEST(EngineLoopWaitingTest, PriorityGoesFirstThenArrival) {
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

// Whoever floods the queue with a higher priority passes by what waits for so long and no longer.
TEST(EngineLoopWaitingTest, AFloodOfHigherPriorityStarvesNobody) {
  for (const int priority : {1, 10, kMaxPriority}) {
    HarnessOptions options;
    options.slots = 1;
    LoopHarness h(options);
    auto blocker = h.Submit(Greedy({1}, 5)).value();
    h.Turn();
    const absl::Duration begin = h.clock.Monotonic();
    auto patient = h.Submit(Greedy({1}, 1)).value();
    Answer answer;
    std::deque<std::shared_ptr<TokenStream>> flood;
    const absl::Duration bound = 1.5 * priority * kPriorityStep + absl::Seconds(1);
    while (!answer.ended && h.clock.Monotonic() - begin < 2 * bound) {
      // There is always one of them that waits.
      while (flood.size() < 3) {
        Request request = Greedy({1}, 2);
        request.priority = priority;
        flood.push_back(h.Submit(request).value());
      }
      Answer of_flood;
      LoopHarness::Read(*flood.front(), of_flood);
      if (of_flood.ended) flood.pop_front();
      h.clock.Advance(priority * kPriorityStep / 50);
      h.Turn();
      LoopHarness::Read(*patient, answer);
    }
    EXPECT_TRUE(answer.ended) << "priority " << priority;
    EXPECT_GT(h.clock.Monotonic() - begin, priority * kPriorityStep / 2) << "it was no head start";
    EXPECT_LT(h.clock.Monotonic() - begin, bound) << "priority " << priority;
  }
}

TEST(EngineLoopWaitingTest, AFullQueueIsRefusedWithAHint) {
  HarnessOptions options;
  options.slots = 2;
  options.engine.max_queued_requests = 2;
  LoopHarness h(options);
  ASSERT_TRUE(h.loop->commands().Create(Key("has-a-slab"), absl::InfiniteDuration()).ok());
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

// --- Rows ---

HarnessOptions FewRows(int rows) {
  HarnessOptions options;
  options.slots = 8;
  options.engine.max_rows = rows;
  return options;
}

TEST(EngineLoopWaitingTest, WhatStepsHaveNoRowForWaitsThoughSlabsAreFree) {
  LoopHarness h(FewRows(2));
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int i = 0; i < 5; ++i) streams.push_back(h.Submit(Greedy({i}, 10)).value());
  EXPECT_EQ(h.stats.requests_waiting.value(), 5) << "accepted, though the loop has not seen them";
  h.Turn();
  EXPECT_EQ(h.stats.requests_running.value(), 2);
  EXPECT_EQ(h.stats.requests_waiting.value(), 3);
  EXPECT_EQ(h.stats.slabs_used.value(), 2);
  for (int i = 0; i < 5; ++i) {
    const Answer answer = h.Finish(*streams[i]);
    EXPECT_EQ(answer.tokens[0], h.Generate(Greedy({i}, 10)).tokens[0]);
    // Ten steps of a millisecond, two requests at a time.
    const absl::Duration queued = answer.last.timings.queue;
    EXPECT_GE(queued, absl::Milliseconds(10) * (i / 2)) << i;
    EXPECT_LE(queued, absl::Milliseconds(10) * (i / 2) + absl::Milliseconds(2)) << i;
  }
  EXPECT_EQ(h.stats.requests_running.value(), 0);
  EXPECT_EQ(h.stats.requests_waiting.value(), 0);
}

TEST(EngineLoopWaitingTest, AQueueForRowsIsFullToo) {
  HarnessOptions options = FewRows(1);
  options.engine.max_queued_requests = 2;
  LoopHarness h(options);
  auto running = h.Submit(Greedy({1}, 20)).value();
  auto a = h.Submit(Greedy({1}, 1)).value(), b = h.Submit(Greedy({1}, 1)).value();
  h.Turn();
  EXPECT_EQ(h.stats.requests_queued.value(), 2);
  const Answer refused = h.Generate(Greedy({1}, 1));
  EXPECT_EQ(ReasonOf(refused.status()), kReasonQueueFull);
  EXPECT_EQ(h.Finish(*b).status(), absl::OkStatus());
  EXPECT_EQ(h.stats.requests_queued.value(), 0);
}

TEST(EngineLoopWaitingTest, NobodyOvertakesWhoWaitsForRows) {
  LoopHarness h(FewRows(4));
  ASSERT_TRUE(h.loop->commands().Create(Key("has-a-slab"), absl::InfiniteDuration()).ok());
  auto first = h.Submit(Greedy({1}, 10)).value();
  h.Turn();
  Request large = Greedy({2}, 5);
  large.n = 4;
  auto second = h.Submit(large).value();
  auto third = h.Submit(Greedy({3}, 1, "has-a-slab")).value();
  h.Turn();
  EXPECT_EQ(h.stats.requests_waiting.value(), 2) << "three rows are free, four are needed";
  Answer answer;
  for (int turn = 0; turn < 8; ++turn) {
    h.Turn();
    LoopHarness::Read(*third, answer);
    EXPECT_EQ(answer.events, 0);
  }
  EXPECT_EQ(h.Finish(*first).status(), absl::OkStatus());
  EXPECT_EQ(h.Finish(*second).status(), absl::OkStatus());
  EXPECT_EQ(h.Finish(*third).status(), absl::OkStatus());
}

TEST(EngineLoopWaitingTest, ASlowReaderLendsItsRow) {
  HarnessOptions options = FewRows(1);
  options.engine.stream_capacity_events = 4;
  LoopHarness h(options);
  auto slow = h.Submit(Greedy({1}, 50)).value();
  auto quick = h.Submit(Greedy({2}, 3)).value();
  h.Turn();
  EXPECT_EQ(h.stats.requests_waiting.value(), 1);
  EXPECT_EQ(h.Finish(*quick).status(), absl::OkStatus());
  EXPECT_EQ(h.stats.requests_running.value(), 1);
  EXPECT_EQ(h.stats.requests_paused.value(), 1);
  EXPECT_EQ(h.Finish(*slow).tokens[0], h.Generate(Greedy({1}, 50)).tokens[0]);
  EXPECT_EQ(h.stats.requests_paused.value(), 0);
}

TEST(EngineLoopWaitingTest, MoreChoicesThanRowsRunAlone) {
  LoopHarness h(FewRows(2));
  Request large = Greedy({2}, 5);
  large.n = 3;
  auto first = h.Submit(large).value();
  auto second = h.Submit(Greedy({2}, 5)).value();
  h.Turn();
  EXPECT_EQ(h.stats.requests_running.value(), 1);
  EXPECT_EQ(h.stats.requests_waiting.value(), 1);
  const Answer all = h.Finish(*first);
  const Answer one = h.Finish(*second);
  EXPECT_THAT(all.tokens, ElementsAre(one.tokens[0], one.tokens[0], one.tokens[0]));
}

TEST(EngineLoopWaitingTest, NewSessionsLeaveTheSlabsThatWaitingRequestsWillNeed) {
  HarnessOptions options = FewRows(1);
  options.slots = 3;
  LoopHarness h(options);
  auto running = h.Submit(Greedy({1}, 5)).value();
  auto waiting = h.Submit(Greedy({1}, 5)).value();
  h.Turn();
  EXPECT_EQ(h.stats.slabs_used.value(), 1);
  EXPECT_TRUE(h.loop->commands().Create(Key("a"), absl::ZeroDuration()).ok());
  const absl::Status taken = h.loop->commands().Create(Key("b"), absl::ZeroDuration()).status();
  EXPECT_EQ(ReasonOf(taken), kReasonNoFreeSlab) << taken;
  EXPECT_EQ(h.Finish(*waiting).status(), absl::OkStatus());
  EXPECT_TRUE(h.loop->commands().Create(Key("b"), absl::ZeroDuration()).ok());
}

// --- Busy sessions ---

TEST(EngineLoopWaitingTest, ASecondWriterIsAbortedAndNamesTheSession) {
  LoopHarness h;
  auto first = h.Submit(Greedy({1}, 5, "s")).value();
  const Answer second = h.Generate(Greedy({2}, 5, "s"));
  EXPECT_TRUE(absl::IsAborted(second.status()));
  EXPECT_EQ(ReasonOf(second.status()), kReasonSessionBusy);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("\"s\""));
  EXPECT_EQ(h.Finish(*first).status(), absl::OkStatus());
  EXPECT_EQ(h.Generate(Greedy({2}, 5, "s")).status(), absl::OkStatus());
}

TEST(EngineLoopWaitingTest, ABusySessionIsNeitherDeletedNorForked) {
  LoopHarness h;
  auto stream = h.Submit(Greedy({1}, 5, "s")).value();
  h.Turn();
  EXPECT_TRUE(absl::IsFailedPrecondition(h.loop->commands().Delete(Key("s"))));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      h.loop->commands().Fork(Key("s"), Key("t"), absl::ZeroDuration()).status()));
  EXPECT_TRUE(h.loop->commands().Get(Key("s"))->busy);
  h.Finish(*stream);
  EXPECT_FALSE(h.loop->commands().Get(Key("s"))->busy);
  EXPECT_EQ(h.loop->commands().Delete(Key("s")), absl::OkStatus());
  EXPECT_TRUE(absl::IsNotFound(h.loop->commands().Delete(Key("s"))));
}

TEST(EngineLoopWaitingTest, CommandsCheckNamesAndExistence) {
  LoopHarness h;
  EXPECT_EQ(FieldOf(h.loop->commands().Create(Key("a b"), absl::ZeroDuration()).status()), "name");
  EXPECT_EQ(FieldOf(h.loop->commands().Get(Key("")).status()), "name");
  ASSERT_TRUE(h.loop->commands().Create(Key("a"), absl::ZeroDuration()).ok());
  EXPECT_TRUE(
      absl::IsAlreadyExists(h.loop->commands().Create(Key("a"), absl::ZeroDuration()).status()));
  EXPECT_TRUE(
      absl::IsNotFound(h.loop->commands().Fork(Key("b"), Key("c"), absl::ZeroDuration()).status()));
}

// --- Time ---

TEST(EngineLoopWaitingTest, IdleSessionsExpireAndUseKeepsThemAlive) {
  LoopHarness h;
  ASSERT_TRUE(h.loop->commands().Create(Key("s"), absl::Seconds(10)).ok());
  ASSERT_TRUE(h.loop->commands().Create(Key("for-ever"), absl::InfiniteDuration()).ok());
  h.clock.Advance(absl::Seconds(9));
  h.Generate(Greedy({1}, 1, "s"));
  h.clock.Advance(absl::Seconds(9));
  h.Turn();
  EXPECT_TRUE(h.loop->commands().Get(Key("s")).ok());
  h.clock.Advance(absl::Seconds(2));
  h.Turn();
  EXPECT_TRUE(absl::IsNotFound(h.loop->commands().Get(Key("s")).status()));
  h.clock.Advance(absl::Hours(100'000));
  h.Turn();
  EXPECT_TRUE(h.loop->commands().Get(Key("for-ever")).ok());
  EXPECT_EQ(h.pool->used_slots(), 1);
}

TEST(EngineLoopWaitingTest, ARequestGivesAnExistingSessionItsTimeToLive) {
  LoopHarness h;
  ASSERT_TRUE(h.loop->commands().Create(Key("s"), absl::Seconds(10)).ok());
  Request longer = Greedy({1}, 1, "s");
  longer.session_ttl = absl::Seconds(100);
  h.Generate(longer);
  EXPECT_EQ(h.loop->commands().Get(Key("s"))->ttl, absl::Seconds(100));
  h.Generate(Greedy({1}, 1, "s"));  // says nothing of it
  h.clock.Advance(absl::Seconds(99));
  h.Turn();
  EXPECT_TRUE(h.loop->commands().Get(Key("s")).ok());
  h.clock.Advance(absl::Seconds(2));
  h.Turn();
  EXPECT_TRUE(absl::IsNotFound(h.loop->commands().Get(Key("s")).status()));
}

TEST(EngineLoopWaitingTest, ARefusedRequestLeavesTheTimeToLive) {
  LoopHarness h;
  ASSERT_TRUE(h.loop->commands().Create(Key("s"), absl::Seconds(10)).ok());
  Request request = Greedy({1}, 1, "s");
  request.session_ttl = absl::Seconds(100);
  request.expected_position = 7;
  EXPECT_FALSE(h.Generate(request).status().ok());
  EXPECT_EQ(h.loop->commands().Get(Key("s"))->ttl, absl::Seconds(10));
}

TEST(EngineLoopWaitingTest, AWaitingRequestExpiresBeforeItCostsAStep) {
  HarnessOptions options;
  options.slots = 1;
  LoopHarness h(options);
  auto running = h.Submit(Greedy({1}, 1000)).value();
  h.Turn();
  Request request = Greedy({2}, 5, "late");
  request.deadline = h.clock.Monotonic() + absl::Seconds(1);
  auto stream = h.Submit(request).value();
  h.Turn();
  h.clock.Advance(absl::Seconds(2));
  stream->Cancel();  // as a call does that its client has left at the deadline
  const Answer answer = h.Finish(*stream);
  EXPECT_TRUE(absl::IsDeadlineExceeded(answer.status()));
  EXPECT_EQ(h.stats.finished_by(FinishReason::kDeadline).value(), 1);
  EXPECT_FALSE(answer.start.has_value());
  EXPECT_EQ(answer.last.usage.fed_tokens, 0);
  EXPECT_TRUE(absl::IsNotFound(h.loop->commands().Get(Key("late")).status()));
}

TEST(EngineLoopWaitingTest, ARunningRequestThatExpiresKeepsExactlyWhatWasFed) {
  LoopHarness h;
  Request request = Greedy({1, 2}, 100, "s");
  request.deadline = h.clock.Monotonic() + absl::Milliseconds(6);  // a step takes one
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

TEST(EngineLoopWaitingTest, SettingTheDateEndsNoRequest) {
  LoopHarness h;
  Request request = Greedy({1, 2}, 1000);
  request.deadline = h.clock.Monotonic() + absl::Seconds(10);
  auto stream = h.Submit(request).value();
  h.Turn();
  h.clock.SetDateForward(absl::Hours(24));
  h.Turn();
  EXPECT_EQ(h.stats.finished_by(FinishReason::kDeadline).value(), 0);
  h.clock.Advance(absl::Seconds(11));
  EXPECT_TRUE(absl::IsDeadlineExceeded(h.Finish(*stream).status()));
}

TEST(EngineLoopWaitingTest, CancellingInThePromptKeepsThePartThatWasFed) {
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

TEST(EngineLoopWaitingTest, DroppingTheStreamCancelsUnlessDetached) {
  LoopHarness h;
  (void)h.Submit(Greedy({1}, 100, "gone")).value();
  Request detached = Greedy({1}, 30, "stays");
  detached.detached = true;
  (void)h.Submit(detached).value();
  h.TurnUntilQuiet();
  EXPECT_TRUE(absl::IsNotFound(h.loop->commands().Get(Key("gone")).status())) << "nothing was fed";
  EXPECT_EQ(h.loop->commands().Get(Key("stays"))->position, 31);
  EXPECT_EQ(h.stats.requests_running.value(), 0);
}

// --- Back-pressure ---

TEST(EngineLoopWaitingTest, ASlowReaderStallsOnlyItself) {
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

TEST(EngineLoopWaitingTest, PromptLogprobsComeInBoundedSteps) {
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

TEST(EngineLoopWaitingTest, ALongPromptDoesNotStallDecoding) {
  LoopHarness h;
  auto decoding = h.Submit(Greedy({1}, 60)).value();
  h.Turn();
  auto prompt = h.Submit(Greedy(std::vector<int32_t>(300, 2), 1)).value();
  const size_t before = h.rows_per_step.size();
  EXPECT_EQ(h.Finish(*decoding).status(), absl::OkStatus());
  EXPECT_LE(h.rows_per_step.size() - before, 61) << "a token in each step";
  EXPECT_EQ(h.Finish(*prompt).status(), absl::OkStatus());
}

}  // namespace
}  // namespace mneme
