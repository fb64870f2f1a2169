#include "engine/step_pipeline.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/sessions/token_history.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_model.h"

namespace mneme {
namespace {

using ::testing::ElementsAre;

constexpr int kPipelineVocab = 16;
constexpr absl::Duration kStepTime = absl::Milliseconds(3);
constexpr absl::Duration kCrossingTime = absl::Milliseconds(2);
constexpr int kSegment = 4;

// The fake model's next token, by the shortest way.
struct OracleRow {
  FakeMemory memory;
  int64_t fed = 0;

  int32_t Feed(std::span<const int32_t> tokens) {
    memory.Feed(tokens);
    fed += static_cast<int64_t>(tokens.size());
    const std::vector<double> logits = memory.Logits(kPipelineVocab);
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
};

class StepPipelineTest : public ::testing::Test {
 protected:
  static constexpr StepPipeline::Options kOptions = {
      .max_rows = 2, .max_tokens = 8, .max_scored_tokens = 4, .runs_ahead = true};

  StepPipelineTest() {
    backend.set_asynchronous(true);
    Make(kOptions);
  }
  void Make(const StepPipeline::Options& options) {
    pipeline = std::make_unique<StepPipeline>(*runner, /*routing=*/nullptr, phases, stats, options);
  }
  // A candidate that feeds `tokens` to the slab of sequence `of`.
  RowCandidate Candidate(int of, std::span<const int32_t> tokens) {
    return {.slot = slots[of], .position = oracles[of].fed, .tokens = tokens, .samples = true};
  }
  // Plans and launches a step whose rows end with `end_token`.
  void Begin(std::span<const RowCandidate> candidates, int32_t end_token = -1) {
    pipeline->Plan(candidates);
    pipeline->Launch();
    SamplingBatch& draws = pipeline->NewDraws();
    TokenHistory history;
    const std::vector<int32_t> ends(1, end_token);
    for (int row = 0; row < pipeline->plan().rows(); ++row) {
      Sampler({.temperature = 0}, /*seed=*/1, ends, /*logprobs=*/-1, /*prompt_logprobs=*/-1)
          .AppendDraw(history, /*choice=*/0, /*position=*/0, /*ban=*/false, draws);
    }
    pipeline->Draw();
  }

  FakeClock clock;
  EngineStats stats;
  PhaseClock phases{clock, stats};
  FaultyBackend backend;
  FakeModel model{
      {.vocab = kPipelineVocab,
       .segment = kSegment,
       .on_step = [this](int, int) { clock.Advance(kStepTime); },
       .on_crossings = [this](int crossings) { clock.Advance(crossings * kCrossingTime); }}};
  std::unique_ptr<StatePool> pool = StatePool::Create(backend, model, 2).value();
  std::unique_ptr<ModelRunner> runner =
      ModelRunner::Create(backend, model, *pool, {.rows = 2, .tokens = 8, .logit_rows = 6}).value();
  const std::vector<int> slots = {pool->Acquire().value(), pool->Acquire().value()};
  std::vector<OracleRow> oracles = std::vector<OracleRow>(2);
  std::unique_ptr<StepPipeline> pipeline;
};

TEST_F(StepPipelineTest, AStepEndsWithItsDraws) {
  const std::vector<int32_t> one = {3}, prompt = {1, 2, 4};
  const RowCandidate candidates[] = {Candidate(0, prompt), Candidate(1, one)};
  Begin(candidates);
  EXPECT_TRUE(pipeline->in_flight());
  ASSERT_EQ(pipeline->Finish(), absl::OkStatus());
  EXPECT_FALSE(pipeline->in_flight());
  EXPECT_THAT(pipeline->plan().candidates, ElementsAre(1, 0)) << "decoding first";
  EXPECT_THAT(pipeline->result().tokens,
              ElementsAre(oracles[1].Feed(one), oracles[0].Feed(prompt)));
  EXPECT_EQ(pipeline->steps(), 1);
  EXPECT_EQ(pipeline->sampled_at(), clock.Monotonic());
  EXPECT_EQ(stats.step_seconds.count(), 1);
  EXPECT_EQ(stats.state_bytes.value(), 2 * 2 * pool->slab_bytes());
  const auto spent = [&](StepPhase phase) {
    return absl::Nanoseconds(stats.phase_nanoseconds[static_cast<size_t>(phase)].value());
  };
  EXPECT_EQ(spent(StepPhase::kForward), kStepTime);
}

TEST_F(StepPipelineTest, AStepAheadFeedsTheDrawsOfTheOneBefore) {
  const std::vector<int32_t> first = {3}, second = {5};
  const RowCandidate candidates[] = {Candidate(0, first), Candidate(1, second)};
  const int32_t a = oracles[0].Feed(first), b = oracles[1].Feed(second);
  ASSERT_NE(a, b);
  Begin(candidates, /*end_token=*/b);
  ASSERT_TRUE(pipeline->CanLaunchNext());
  pipeline->LaunchNext();
  EXPECT_TRUE(pipeline->ahead());
  ASSERT_EQ(pipeline->Finish(), absl::OkStatus());
  EXPECT_THAT(pipeline->result().tokens, ElementsAre(a, b));
  pipeline->TakeNext([](int candidate) { return candidate == 1; });
  EXPECT_TRUE(pipeline->in_flight());
  EXPECT_FALSE(pipeline->ahead());
  EXPECT_THAT(pipeline->plan().token_ids, ElementsAre(a, b));
  EXPECT_THAT(pipeline->plan().positions, ElementsAre(1, 1));
  EXPECT_THAT(pipeline->plan().slots, ElementsAre(slots[0], -1));
  EXPECT_THAT(pipeline->result().tokens, ElementsAre(a, b)) << "for whoever delivers them";

  ASSERT_EQ(pipeline->Finish(), absl::OkStatus());
  EXPECT_EQ(pipeline->result().tokens[0], oracles[0].Feed({&a, 1}));
  EXPECT_EQ(pipeline->steps(), 2);
  EXPECT_EQ(stats.ahead_steps.value(), 1);
  EXPECT_EQ(stats.state_bytes.value(), 2 * 3 * pool->slab_bytes()) << "padding moves none";
}

TEST_F(StepPipelineTest, OnlyADecodeStepOfAllCandidatesCanBeFollowedUnseen) {
  const std::vector<int32_t> one = {3}, other = {4}, prompt = {1, 2};
  const auto can = [&](std::span<const RowCandidate> candidates) {
    Begin(candidates);
    const bool able = pipeline->CanLaunchNext();
    EXPECT_EQ(pipeline->Finish(), absl::OkStatus());
    for (int row = 0; row < pipeline->plan().rows(); ++row) {
      oracles[pipeline->plan().slots[row] == slots[0] ? 0 : 1].Feed(
          pipeline->plan().row_tokens(row));
    }
    return able;
  };
  EXPECT_TRUE(can(std::vector{Candidate(0, one), Candidate(1, other)}));
  EXPECT_FALSE(can(std::vector{Candidate(0, one), Candidate(1, prompt)})) << "a prompt";
  RowCandidate silent = Candidate(0, one);
  silent.samples = false;
  pipeline->Plan({&silent, 1});
  EXPECT_FALSE(pipeline->CanLaunchNext()) << "a row that draws nothing";
  StepPipeline::Options options = kOptions;
  options.max_rows = 1;
  Make(options);
  EXPECT_FALSE(can(std::vector{Candidate(0, one), Candidate(1, other)})) << "one has to wait";
  options = kOptions;
  options.runs_ahead = false;
  Make(options);
  EXPECT_FALSE(can(std::vector{Candidate(0, one)})) << "not wanted";
  Make(kOptions);
  backend.set_asynchronous(false);
  EXPECT_FALSE(can(std::vector{Candidate(0, one)})) << "the host computes";
}

TEST_F(StepPipelineTest, AFailureTakesTheStepAheadWithIt) {
  const std::vector<int32_t> one = {3};
  const RowCandidate candidates[] = {Candidate(0, one)};
  Begin(candidates);
  pipeline->LaunchNext();
  backend.FailNext(absl::InternalError("boom"));
  EXPECT_EQ(pipeline->Finish(), absl::InternalError("boom"));
  EXPECT_FALSE(pipeline->in_flight());
  EXPECT_FALSE(pipeline->ahead());
  EXPECT_EQ(pipeline->steps(), 0);
  EXPECT_EQ(stats.step_seconds.count(), 0);
}

// Two crossings would take longer than the slowdown allows, and one does not.
TEST_F(StepPipelineTest, CrossingsThatWouldTakeTooLongWaitForAnotherStep) {
  StepPipeline::Options options = kOptions;
  options.max_decode_slowdown = 2;
  Make(options);
  const std::vector<int32_t> one = {3}, other = {5};
  std::vector<int64_t> last_run(2);
  std::vector<std::pair<int, bool>> steps;  // crossings, and whether it can be followed unseen
  for (int step = 1; step <= 4 * kSegment; ++step) {
    std::vector<RowCandidate> candidates = {Candidate(0, one), Candidate(1, other)};
    for (int i = 0; i < 2; ++i) candidates[i].last_run = last_run[i];
    Begin(candidates);
    int crossings = 0;
    for (int row = 0; row < pipeline->plan().rows(); ++row) {
      const int64_t position = pipeline->plan().positions[row];
      crossings += position > 0 && position % kSegment == 0 ? 1 : 0;
    }
    steps.emplace_back(crossings, pipeline->CanLaunchNext());
    ASSERT_EQ(pipeline->Finish(), absl::OkStatus());
    for (int row = 0; row < pipeline->plan().rows(); ++row) {
      const int of = pipeline->plan().candidates[row];
      oracles[of].Feed(pipeline->plan().row_tokens(row));
      last_run[of] = step;
    }
  }
  // Both cross once, while nothing is known; at the next boundary one waits, and from then on they
  // cross one behind the other.
  using Step = std::pair<int, bool>;
  EXPECT_THAT(steps, ElementsAre(Step(0, true), Step(0, true), Step(0, true), Step(0, true),
                                 Step(2, true), Step(0, true), Step(0, true), Step(0, false),
                                 Step(1, false), Step(1, true), Step(0, true), Step(0, true),
                                 Step(1, true), Step(1, true), Step(0, true), Step(0, true)));
  const Histogram& boundaries = stats.engrams.boundary_seconds;
  EXPECT_EQ(boundaries.count(), 4) << "but for the one of a single row, which had no like";
  EXPECT_NEAR(boundaries.sum(), absl::ToDoubleSeconds(5 * kCrossingTime), 1e-12);
}

TEST_F(StepPipelineTest, NothingToRunIsAnEmptyPlan) {
  const std::vector<int32_t> one = {3};
  const RowCandidate candidates[] = {Candidate(0, one)};
  EXPECT_FALSE(pipeline->had_candidates());
  Begin(candidates);
  ASSERT_EQ(pipeline->Finish(), absl::OkStatus());
  EXPECT_TRUE(pipeline->had_candidates());
  pipeline->Plan({});
  EXPECT_TRUE(pipeline->plan().empty());
  EXPECT_FALSE(pipeline->had_candidates());
}

}  // namespace
}  // namespace mneme
