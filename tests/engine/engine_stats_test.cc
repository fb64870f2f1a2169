// The engine's counts, and its report about a request that ended.
#include "engine/engine_stats.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/engine_loop.h"
#include "engine/routing_counter.h"
#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/loop_harness.h"

namespace mneme {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

int64_t RejectedFor(const EngineStats& stats, absl::string_view reason) {
  const auto reasons = EngineStats::RejectReasons();
  for (size_t i = 0; i < reasons.size(); ++i) {
    if (reasons[i] == reason) return stats.rejected_reason[i].value();
  }
  return -1;
}

int64_t Count(const EngineStats& stats, ResumeOutcome outcome) {
  return stats.resumes[static_cast<size_t>(outcome)].value();
}

absl::Duration Spent(const EngineStats& stats, StepPhase phase) {
  return absl::Nanoseconds(stats.phase_nanoseconds[static_cast<size_t>(phase)].value());
}

TEST(EngineStatsTest, ResumesAreCountedByWhatTheRequestFound) {
  LoopHarness h;
  h.Generate(Greedy({1, 2}, 2, "s"));
  h.Generate(Greedy({3}, 2, "s"));
  h.Generate(Greedy({3}, 2));  // no session: no resume
  Request elsewhere = Greedy({3}, 2, "s");
  elsewhere.expected_position = 1;
  h.Generate(elsewhere);
  EXPECT_EQ(Count(h.stats, ResumeOutcome::kCold), 1);
  EXPECT_EQ(Count(h.stats, ResumeOutcome::kHot), 1);
  EXPECT_EQ(Count(h.stats, ResumeOutcome::kRefused), 1);
  EXPECT_EQ(h.stats.resumed_tokens.value(), 3) << "2 of the prompt, 1 of the answer";
}

TEST(EngineStatsTest, PromptTokensAreCountedAsRequestsTellThem) {
  LoopHarness h;
  int64_t told_new = 0, told_cached = 0;
  const auto count = [&](Request request, int64_t expected_new, int64_t expected_cached) {
    const Usage usage = h.Generate(std::move(request)).last.usage;
    EXPECT_EQ(usage.prompt_tokens, expected_new);
    EXPECT_EQ(usage.resumed_tokens, expected_cached);
    told_new += usage.prompt_tokens;
    told_cached += usage.resumed_tokens;
    EXPECT_EQ(h.stats.prompt_tokens.value(), told_new);
    EXPECT_EQ(h.stats.resumed_tokens.value(), told_cached);
    EXPECT_EQ(h.stats.request_prompt_tokens.sum(), told_new);
  };
  count(Greedy({1, 2, 3}, 4, "s"), 3, 0);
  count(Greedy({4, 5}, 3, "s"), 3, 6);  // with the pending token of the answer before
  count(Greedy({}, 2, "s"), 1, 11);
  Request choices = Greedy({6, 7}, 5, "s");
  choices.n = 3;
  count(choices, 3, 13);  // each choice feeds the last one for itself
  count(Greedy({8}, 0), 1, 0);
}

// A reader may take its last event at any time, and look at everything then. Requests that end in
// one step tell of it one after the other; nobody has a last event before all is counted.
TEST(EngineStatsTest, WhoHasTheLastEventFindsItsRequestEndedInAllNumbers) {
  constexpr int kRequests = 2;
  const EngineStats* stats = nullptr;
  std::vector<std::shared_ptr<TokenStream>> streams;
  int ended = 0;
  const auto read = [&] {
    for (const auto& stream : streams) {
      while (const std::optional<TokenEvent> event = stream->TryNext()) {
        if (!event->is_last) continue;
        ++ended;
        EXPECT_EQ(stats->requests_running.value(), 0);
        EXPECT_EQ(stats->slabs_used.value(), 0);
        EXPECT_EQ(stats->slabs_ephemeral.value(), 0);
        EXPECT_EQ(stats->finished_by(FinishReason::kLength).value(), kRequests);
        EXPECT_EQ(stats->request_seconds.count(), kRequests);
      }
    }
  };
  HarnessOptions options;
  options.engine.on_request_end = [&](const RequestReport&) { read(); };
  LoopHarness h(options);
  stats = &h.stats;
  for (int i = 0; i < kRequests; ++i) {
    streams.push_back(h.Submit(Greedy({1, 2}, 3)).value());
    streams.back()->SetReadyCallback(read);
  }
  read();  // nothing yet: from now on the callbacks tell
  h.TurnUntilQuiet();
  EXPECT_EQ(ended, kRequests);
  for (const auto& stream : streams) stream->SetReadyCallback(nullptr);
}

TEST(EngineStatsTest, ACommandIsCountedBeforeItsAnswer) {
  LoopHarness h;
  ASSERT_TRUE(h.loop->commands().Create(Key("a"), absl::ZeroDuration()).ok());
  EXPECT_EQ(h.stats.sessions.value(), 1);
  EXPECT_EQ(h.stats.slabs_used.value(), 1);
  ASSERT_TRUE(h.loop->commands().Fork(Key("a"), Key("b"), absl::ZeroDuration()).ok());
  EXPECT_EQ(h.stats.sessions.value(), 2);
  EXPECT_EQ(h.stats.slabs_used.value(), 2);
  EXPECT_EQ(h.stats.slab_copy_bytes.value(), h.pool->copied_bytes());
  EXPECT_GT(h.pool->copied_bytes(), 0);
  ASSERT_TRUE(h.loop->commands().Delete(Key("a")).ok());
  EXPECT_EQ(h.stats.sessions.value(), 1);
  EXPECT_EQ(h.stats.slabs_used.value(), 1);
}

TEST(EngineStatsTest, SessionsAreCountedFromTheirBeginningToEachKindOfEnd) {
  HarnessOptions options;
  options.poison_token = 7;
  LoopHarness h(options);
  ASSERT_TRUE(h.loop->commands().Create(Key("deleted"), absl::ZeroDuration()).ok());
  ASSERT_TRUE(h.loop->commands().Delete(Key("deleted")).ok());
  ASSERT_TRUE(h.loop->commands().Create(Key("expires"), absl::Seconds(1)).ok());
  h.clock.Advance(absl::Seconds(2));
  EXPECT_FALSE(h.Generate(Greedy({7}, 2, "spoilt")).status().ok());
  EXPECT_EQ(h.stats.sessions_created.value(), 3);
  EXPECT_EQ(h.stats.ended_by(SessionEnd::kDeleted).value(), 1);
  EXPECT_EQ(h.stats.ended_by(SessionEnd::kExpired).value(), 1);
  EXPECT_EQ(h.stats.ended_by(SessionEnd::kSpoilt).value(), 1);
  EXPECT_EQ(h.stats.ended_by(SessionEnd::kUnborn).value(), 0);
}

TEST(EngineStatsTest, RejectionsAreCountedByCodeAndReason) {
  LoopHarness h;
  Request missing = Greedy({1}, 1, "missing");
  missing.create_session = false;
  h.Generate(missing);
  Request bad = Greedy({1}, 1);
  bad.sampling.top_p = 2;
  h.Generate(bad);
  h.loop->StopAccepting();
  h.Generate(Greedy({1}, 1));
  EXPECT_EQ(h.stats.rejected_by(absl::StatusCode::kNotFound).value(), 1);
  EXPECT_EQ(h.stats.rejected_by(absl::StatusCode::kInvalidArgument).value(), 1);
  EXPECT_EQ(h.stats.rejected_by(absl::StatusCode::kUnavailable).value(), 1);
  EXPECT_EQ(RejectedFor(h.stats, kReasonNoSession), 1);
  EXPECT_EQ(RejectedFor(h.stats, kReasonBadField), 1);
  EXPECT_EQ(RejectedFor(h.stats, kReasonDraining), 1);
}

TEST(EngineStatsTest, EveryReasonIsCountedByItsName) {
  EngineStats stats;
  for (const absl::string_view reason : kReasons) {
    EXPECT_EQ(RejectedFor(stats, reason), 0) << reason << " twice in the list?";
    stats.Reject(WithReason(absl::FailedPreconditionError("refused"), reason));
    EXPECT_EQ(RejectedFor(stats, reason), 1) << reason;
  }
  EXPECT_EQ(RejectedFor(stats, "OTHER"), 0);
  for (const absl::string_view reason :
       {kReasonContextFull, kReasonMemorySeed, kReasonEngramCapacity, kReasonWrongKind}) {
    EXPECT_EQ(RejectedFor(stats, reason), 1) << reason;
  }
}

TEST(EngineStatsTest, RequestsThatFillOrExceedTheContextAreCounted) {
  HarnessOptions options;
  options.max_context = 10;
  LoopHarness h(options);
  h.Generate(Greedy({1, 2, 3}, 4, "s"));
  EXPECT_EQ(h.stats.contexts_filled.value(), 0) << "max_tokens ended it";
  h.Generate(Greedy({1, 2, 3}, 8, "t"));
  EXPECT_EQ(h.stats.contexts_filled.value(), 0) << "there was room for all";
  Request choices = Greedy({1, 2, 3}, 100);
  choices.n = 2;
  h.Generate(choices);
  EXPECT_EQ(h.stats.contexts_filled.value(), 1) << "one request, of two choices";
  h.Generate(Greedy({4}, 1, "t"));
  EXPECT_EQ(h.stats.contexts_filled.value(), 1) << "it was refused";
  EXPECT_EQ(RejectedFor(h.stats, kReasonContextFull), 1);
  EXPECT_EQ(RejectedFor(h.stats, "OTHER"), 0);
}

TEST(EngineStatsTest, AReasonThatIsNotListedIsAnother) {
  EngineStats stats;
  stats.Reject(absl::InternalError("no reason"));
  stats.Reject(WithReason(absl::InternalError("a new one"), "BRAND_NEW"));
  EXPECT_EQ(RejectedFor(stats, "OTHER"), 2);
  EXPECT_EQ(stats.rejected_by(absl::StatusCode::kInternal).value(), 2);
}

TEST(EngineStatsTest, ForkedChoicesAndTheLongestOfThemAreCounted) {
  LoopHarness h;
  Request request = Greedy({1, 2, 3}, 5);
  request.n = 3;
  h.Generate(request);
  EXPECT_EQ(h.stats.forked_choices.value(), 2);
  EXPECT_EQ(h.stats.request_generated_tokens.sum(), 15);
  EXPECT_EQ(h.stats.request_longest_choice.sum(), 5);
  EXPECT_EQ(h.stats.inference_seconds.count(), 1);
}

// Nothing is said by a histogram whose values all lie in its first bucket.
TEST(EngineStatsTest, WaitsOfATenthOfAMillisecondAreToldFromLongerOnes) {
  const EngineStats stats;
  for (const Histogram* waits : {&stats.queue_seconds, &stats.prefill_seconds, &stats.step_seconds,
                                 &stats.inter_token_seconds, &stats.output_token_seconds}) {
    EXPECT_EQ(waits->bounds().front(), 0.0001);
    EXPECT_TRUE(std::is_sorted(waits->bounds().begin(), waits->bounds().end()));
  }
}

TEST(EngineStatsTest, TimePerOutputTokenIsOfTheRequestAndNotOfTheGap) {
  HarnessOptions options;
  options.step_time = absl::Milliseconds(10);
  LoopHarness h(options);
  Request request = Greedy({1, 2, 3}, 5);
  request.n = 2;
  h.Generate(request);
  EXPECT_EQ(h.stats.output_token_seconds.count(), 1);
  EXPECT_NEAR(h.stats.output_token_seconds.sum(), 0.010, 1e-9) << "40 ms for 4 further tokens";
  h.Generate(Greedy({1, 2, 3}, 1));
  h.Generate(Greedy({1, 2, 3}, 0));
  EXPECT_EQ(h.stats.output_token_seconds.count(), 1) << "one token has no time after it";
}

TEST(EngineStatsTest, WhatRequestsAskForIsCounted) {
  LoopHarness h;
  Request request = Greedy({1, 2, 3}, 5);
  request.n = 3;
  h.Generate(request);
  h.Generate(Greedy({1, 2}, 7));
  EXPECT_EQ(h.stats.request_n.count(), 2);
  EXPECT_EQ(h.stats.request_n.sum(), 4);
  EXPECT_EQ(h.stats.request_max_tokens.sum(), 12);
  Request unknown = Greedy({1}, 9, "nobody");
  unknown.create_session = false;
  h.Generate(unknown);
  EXPECT_EQ(h.stats.request_n.count(), 2) << "refused";
}

TEST(EngineStatsTest, TheLoopsTimeIsDividedAmongItsPhases) {
  HarnessOptions options;
  options.step_time = absl::Milliseconds(10);
  LoopHarness h(options);
  const absl::Duration begin = h.clock.Monotonic();
  h.Generate(Greedy({1, 2}, 3));
  absl::Duration all;
  for (int phase = 0; phase < kStepPhases; ++phase) {
    all += Spent(h.stats, static_cast<StepPhase>(phase));
  }
  EXPECT_EQ(all, h.clock.Monotonic() - begin);
  EXPECT_EQ(Spent(h.stats, StepPhase::kForward), absl::Milliseconds(30)) << "3 steps";
}

TEST(EngineStatsTest, EveryAcceptedRequestIsReportedOnceWithItsOrigin) {
  HarnessOptions options;
  std::vector<RequestReport> reports;
  options.engine.on_request_end = [&](RequestReport report) { reports.push_back(report); };
  LoopHarness h(options);
  Request request = Greedy({1, 2, 3}, 4, "s");
  request.id = "req-1";
  request.origin = {.api = "grpc", .client = "127.0.0.1:1", .trace_id = "abc"};
  request.idempotency_key = "key";
  h.Generate(request);
  h.Generate(request);  // replayed
  Request refused = Greedy({1}, 1, "missing");
  refused.create_session = false;
  h.Generate(refused);
  auto cancelled = h.Submit(Greedy({1}, 50)).value();
  h.Turn();
  cancelled->Cancel();
  h.TurnUntilQuiet();

  ASSERT_THAT(reports, SizeIs(4));
  EXPECT_EQ(reports[0].id, "req-1");
  EXPECT_EQ(reports[0].origin.client, "127.0.0.1:1");
  EXPECT_EQ(reports[0].origin.trace_id, "abc");
  EXPECT_EQ(reports[0].session.name, "s");
  EXPECT_TRUE(reports[0].admitted);
  EXPECT_FALSE(reports[0].replayed);
  EXPECT_EQ(reports[0].finish, FinishReason::kLength);
  EXPECT_EQ(reports[0].usage.prompt_tokens, 3);
  EXPECT_EQ(reports[0].usage.completion_tokens, 4);
  EXPECT_GT(reports[0].total, absl::ZeroDuration());
  EXPECT_TRUE(reports[1].replayed);
  EXPECT_EQ(reports[2].status.code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(reports[2].admitted);
  EXPECT_EQ(reports[3].finish, FinishReason::kCancelled);
}

TEST(RoutingCountsTest, LayersFallIntoGroupsWhoseFirstAndLastOnesNameThem) {
  for (const int layers : {1, 3, 4, 7, 24}) {
    RoutingCounts counts;
    counts.Resize(layers, 2);
    const LayerGroups& groups = counts.groups();
    EXPECT_EQ(groups.count(), std::min(layers, 4));
    for (int layer = 0; layer < layers; ++layer) counts.Add(layer, 1, 1);
    int first = 0;
    for (int group = 0; group < groups.count(); ++group) {
      const int end = first + static_cast<int>(counts.tokens(group, 1));
      EXPECT_EQ(groups.Name(group), absl::StrCat(first, "-", end - 1)) << layers << " layers";
      EXPECT_EQ(counts.tokens(group, 0), 0);
      first = end;
    }
    EXPECT_EQ(first, layers);
  }
}

TEST(RoutingCountsTest, ACounterAddsEachTokensMemories) {
  RoutingCounts counts;
  counts.Resize(2, 3);
  const std::unique_ptr<Backend> backend = MakeBackend("cpu", {}).value();
  RoutingCounter counter(*backend, counts);
  ASSERT_EQ(counter.ForStep(/*decode_rows=*/3), &counter) << "every step, on the CPU";
  std::vector<int32_t> indices = {0, 2, 2, 1, 0, 2};  // 3 tokens, top 2
  counter.OnRouted(1, {indices.data(), DType::kI32, {3, 2}}, {});
  EXPECT_EQ(counts.tokens(1, 0), 2);
  EXPECT_EQ(counts.tokens(1, 1), 1);
  EXPECT_EQ(counts.tokens(1, 2), 3);
  EXPECT_EQ(counts.tokens(0, 2), 0);
}

}  // namespace
}  // namespace mneme
