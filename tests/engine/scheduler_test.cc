#include "engine/scheduler.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace mneme {
namespace {

using ::testing::ElementsAre;

// Candidates that feed `tokens` tokens each, in slots 0, 1, ... at positions 0, 100, ...
class Candidates {
 public:
  int Add(int tokens, int64_t last_run = 0, int scored = 0) {
    list.push_back({.slot = static_cast<int>(list.size()),
                    .position = 100 * static_cast<int64_t>(list.size()),
                    .tokens = std::span(kTokens).first(tokens),
                    .scored_tokens = scored,
                    .samples = true,
                    .last_run = last_run});
    return static_cast<int>(list.size()) - 1;
  }
  std::vector<RowCandidate> list;

 private:
  inline static const std::vector<int32_t> kTokens = [] {
    std::vector<int32_t> tokens(1000);
    std::iota(tokens.begin(), tokens.end(), 0);
    return tokens;
  }();
};

constexpr StepLimits kSchedulerLimits = {
    .max_rows = 4, .max_tokens = 32, .max_scored_tokens = 8, .prefill_tokens = 32, .min_chunk = 8};

std::vector<int> RowLengths(const StepPlan& plan) {
  std::vector<int> lengths;
  for (int row = 0; row < plan.rows(); ++row) {
    lengths.push_back(static_cast<int>(plan.row_tokens(row).size()));
  }
  return lengths;
}

TEST(SchedulerTest, NothingToRunIsAnEmptyPlan) {
  EXPECT_TRUE(PlanStep({}, kSchedulerLimits).empty());
}

TEST(SchedulerDeathTest, ACandidateSaysAtWhichPositionItStands) {
  const std::vector<int32_t> tokens = {1, 2};
  const RowCandidate silent[] = {{.slot = 3, .tokens = tokens}};
  EXPECT_DEATH(PlanStep(silent, kSchedulerLimits), "slot 3: a row says how much its slab was fed");
}

TEST(SchedulerTest, StepsWithPromptsHaveLikelySizes) {
  EXPECT_EQ(LikelyStepTokens(15), 15);
  EXPECT_EQ(LikelyStepTokens(33), 32);
  EXPECT_EQ(LikelyStepTokens(8192), 8192);
  for (int tokens = 1; tokens < 5000; ++tokens) {
    const int likely = LikelyStepTokens(tokens);
    EXPECT_LE(likely, tokens);
    EXPECT_GT(8 * likely, 7 * tokens - 8) << "no more than an eighth is given away";
    EXPECT_EQ(LikelyStepTokens(likely), likely);
    EXPECT_GT(NextLikelyStepTokens(tokens), tokens);
    EXPECT_EQ(LikelyStepTokens(NextLikelyStepTokens(tokens) - 1), likely);
  }
  Candidates c;
  c.Add(100);
  c.Add(1);
  c.Add(1);
  StepLimits limits = kSchedulerLimits;
  limits.max_tokens = 200;
  limits.prefill_tokens = 40;
  limits.likely_sizes = true;
  EXPECT_THAT(RowLengths(PlanStep(c.list, limits)), ElementsAre(1, 1, 38));
  limits.prefill_tokens = 200;
  EXPECT_THAT(RowLengths(PlanStep(c.list, limits)), ElementsAre(1, 1, 100));
}

TEST(SchedulerTest, DecodingRowsComeFirstAndPrefillFillsTheRest) {
  Candidates c;
  c.Add(100);
  c.Add(1);
  c.Add(1);
  const StepPlan plan = PlanStep(c.list, kSchedulerLimits);
  EXPECT_THAT(plan.slots, ElementsAre(1, 2, 0));
  EXPECT_THAT(plan.positions, ElementsAre(100, 200, 0));
  EXPECT_THAT(RowLengths(plan), ElementsAre(1, 1, 30));
  EXPECT_EQ(plan.decode_rows, 2);
  EXPECT_THAT(plan.logit_tokens, ElementsAre(0, 1)) << "the prompt is not at its end";
}

TEST(SchedulerTest, ALongPromptLeavesWhatTheBudgetSays) {
  Candidates c;
  c.Add(900);
  c.Add(1);
  StepLimits limits = kSchedulerLimits;
  limits.prefill_tokens = 5;
  EXPECT_THAT(RowLengths(PlanStep(c.list, limits)), ElementsAre(1, 5));
  limits.prefill_tokens = 0;
  EXPECT_THAT(RowLengths(PlanStep(c.list, limits)), ElementsAre(1));
}

TEST(SchedulerTest, ShortPromptsLeaveTheirShareToLongOnes) {
  Candidates c;
  c.Add(100);
  c.Add(3);
  c.Add(100);
  const StepPlan plan = PlanStep(c.list, kSchedulerLimits);
  EXPECT_THAT(RowLengths(plan), ElementsAre(3, 14, 15));
  EXPECT_THAT(plan.logit_tokens, ElementsAre(2));
}

TEST(SchedulerTest, ShortPromptsArePackedIntoOneStep) {
  StepLimits limits = kSchedulerLimits;
  limits.max_rows = 32;
  Candidates c;
  for (int i = 0; i < 20; ++i) c.Add(3);
  EXPECT_EQ(PlanStep(c.list, limits).rows(), 10) << "32 tokens are ten prompts of 3";
  limits.prefill_tokens = 8;
  c.Add(1);  // decodes beside them
  EXPECT_EQ(PlanStep(c.list, limits).rows(), 1 + 2);
}

TEST(SchedulerTest, ScoredTokensAreBoundedPerStep) {
  Candidates c;
  c.Add(20, 0, 19);
  c.Add(20, 0, 19);
  const StepPlan plan = PlanStep(c.list, kSchedulerLimits);
  EXPECT_THAT(RowLengths(plan), ElementsAre(4, 4));
  EXPECT_EQ(plan.logit_rows(), 8);
}

TEST(SchedulerTest, MoreScoringPromptsThanLogitRowsTakeTurns) {
  Candidates c;
  for (int i = 0; i < 4; ++i) c.Add(20, /*last_run=*/i, 19);
  StepLimits limits = kSchedulerLimits;
  limits.max_scored_tokens = 2;
  const StepPlan plan = PlanStep(c.list, limits);
  EXPECT_THAT(plan.slots, ElementsAre(0, 1));
  EXPECT_THAT(RowLengths(plan), ElementsAre(1, 1));
}

TEST(SchedulerTest, AScoredPromptThatEndsIsSampledToo) {
  Candidates c;
  c.Add(5, 0, 4);
  const StepPlan plan = PlanStep(c.list, kSchedulerLimits);
  EXPECT_THAT(plan.logit_tokens, ElementsAre(0, 1, 2, 3, 4));
}

TEST(SchedulerTest, TheSameCandidatesGiveTheSamePlan) {
  Candidates c;
  for (int i = 0; i < 9; ++i) c.Add(1 + i % 3, i % 2);
  EXPECT_EQ(PlanStep(c.list, kSchedulerLimits).ToString(),
            PlanStep(c.list, kSchedulerLimits).ToString());
}

struct Crowd {
  int decoding, prefilling, max_rows;
};

class FairnessTest : public ::testing::TestWithParam<Crowd> {};

// All stay runnable for ever: the hardest case, as nobody leaves.
TEST_P(FairnessTest, NobodyWaitsMoreThanTwiceItsFairShare) {
  const auto [decoding, prefilling, max_rows] = GetParam();
  const StepLimits limits = {.max_rows = max_rows,
                             .max_tokens = 256,
                             .max_scored_tokens = 8,
                             .prefill_tokens = 128,
                             .min_chunk = 64};
  Candidates c;
  for (int i = 0; i < decoding; ++i) c.Add(1);
  for (int i = 0; i < prefilling; ++i) c.Add(900);
  const int crowd = decoding + prefilling;
  const int by_rows = (crowd + max_rows - 1) / max_rows;
  const int prefill_rows = limits.prefill_tokens / limits.min_chunk;
  const int by_tokens = (prefilling + prefill_rows - 1) / prefill_rows;

  std::vector<int64_t> longest(crowd, 0);
  for (int64_t step = 1; step <= 2000; ++step) {
    const StepPlan plan = PlanStep(c.list, limits);
    ASSERT_LE(plan.rows(), limits.max_rows);
    ASSERT_LE(plan.tokens(), limits.max_tokens);
    for (const int i : plan.candidates) {
      longest[i] = std::max(longest[i], step - c.list[i].last_run);
      c.list[i].last_run = step;
    }
  }
  for (int i = 0; i < crowd; ++i) {
    const int fair = i < decoding ? by_rows : std::max(by_rows, by_tokens);
    EXPECT_GT(longest[i], 0) << "candidate " << i << " never ran";
    EXPECT_LE(longest[i], 2 * fair) << "candidate " << i;
    EXPECT_LE(2000 - c.list[i].last_run, 2 * fair) << "candidate " << i << " stopped running";
  }
}

INSTANTIATE_TEST_SUITE_P(Crowds, FairnessTest,
                         ::testing::Values(Crowd{100, 0, 8}, Crowd{100, 1, 8}, Crowd{7, 30, 8},
                                           Crowd{0, 33, 8}, Crowd{5, 5, 1}, Crowd{1, 9, 2},
                                           Crowd{64, 64, 64}, Crowd{63, 2, 64}, Crowd{9, 1, 1}));

// Sessions come and go at random; whoever is runnable still runs within twice the fair share of the
// largest crowd.
TEST(SchedulerTest, ChangingCrowdsStayFair) {
  std::mt19937 random(/*seed=*/11);
  const StepLimits limits = {.max_rows = 8,
                             .max_tokens = 64,
                             .max_scored_tokens = 8,
                             .prefill_tokens = 32,
                             .min_chunk = 8};
  Candidates c;
  for (int i = 0; i < 60; ++i) c.Add(i % 4 == 0 ? 500 : 1);
  std::vector<bool> present(60, true);
  const int64_t bound = 2 * 8;  // ceil(60 / 8)
  for (int64_t step = 1; step <= 5000; ++step) {
    const int flip = static_cast<int>(random() % 60);
    present[flip] = !present[flip];
    if (present[flip]) c.list[flip].last_run = step - 1;
    std::vector<RowCandidate> runnable;
    for (int i = 0; i < 60; ++i) {
      if (present[i]) runnable.push_back(c.list[i]);
    }
    for (const int i : PlanStep(runnable, limits).candidates) {
      c.list[runnable[i].slot].last_run = step;
    }
    for (int i = 0; i < 60; ++i) {
      if (!present[i]) continue;
      ASSERT_LE(step - c.list[i].last_run, bound) << "candidate " << i;
    }
  }
}

// Candidates are at 0, 100, 200, ...: all but the first one are about to cross.
StepLimits WithCrossings(int most, int segment = 100) {
  StepLimits limits = kSchedulerLimits;
  limits.max_rows = 8;
  limits.segment = segment;
  limits.max_crossings = most;
  return limits;
}

TEST(SchedulerTest, CrossingsBeyondTheLimitWait) {
  Candidates c;
  for (int i = 0; i < 5; ++i) c.Add(1, /*last_run=*/10 - i);
  EXPECT_THAT(PlanStep(c.list, WithCrossings(2)).candidates, ElementsAre(0, 3, 4));
  EXPECT_THAT(PlanStep(c.list, WithCrossings(4)).candidates, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(PlanStep(c.list, WithCrossings(1, /*segment=*/200)).candidates,
              ElementsAre(0, 1, 3, 4))
      << "200 and 400 are boundaries";
  StepLimits none = WithCrossings(1);
  none.segment = 0;
  EXPECT_EQ(PlanStep(c.list, none).rows(), 5);
}

TEST(SchedulerTest, EachCrossingComesInTurn) {
  Candidates c;
  constexpr int kRows = 7, kMost = 2;
  for (int i = 0; i <= kRows; ++i) c.Add(i % 3 == 1 ? 4 : 1);  // some are prompts
  std::vector<int> crossed(kRows + 1);
  for (int step = 1; step <= (kRows + kMost - 1) / kMost; ++step) {
    const StepPlan plan = PlanStep(c.list, WithCrossings(kMost));
    int crossing = 0;
    for (const int i : plan.candidates) {
      crossing += c.list[i].position > 0 && c.list[i].position % 100 == 0 ? 1 : 0;
      ++crossed[i];
      ++c.list[i].position;
      c.list[i].last_run = step;
    }
    EXPECT_LE(crossing, kMost);
  }
  for (int i = 0; i <= kRows; ++i) EXPECT_GE(crossed[i], 1) << i;
}

TEST(SchedulerTest, PromptsGoOnAsFarAsCrossingsAreLeft) {
  Candidates c;
  c.Add(1);
  c.Add(1);   // crosses
  c.Add(30);  // at 200
  c.list[2].position = 195;
  // One crossing is taken by the row that decodes.
  EXPECT_THAT(RowLengths(PlanStep(c.list, WithCrossings(1))), ElementsAre(1, 1, 5));
  EXPECT_THAT(RowLengths(PlanStep(c.list, WithCrossings(2))), ElementsAre(1, 1, 30));
  // Several segments of one prompt.
  c.list[1].position = 101;
  EXPECT_THAT(RowLengths(PlanStep(c.list, WithCrossings(2, /*segment=*/10))),
              ElementsAre(1, 1, 25));
  // A prompt that stands at a boundary needs a crossing for its first token.
  c.list[2].position = 200;
  EXPECT_THAT(RowLengths(PlanStep(c.list, WithCrossings(1, /*segment=*/10))),
              ElementsAre(1, 1, 10));
  const StepPlan whole = PlanStep(c.list, WithCrossings(3, /*segment=*/10));
  EXPECT_THAT(RowLengths(whole), ElementsAre(1, 1, 30));
  EXPECT_EQ(whole.logit_rows(), 3);
  EXPECT_EQ(PlanStep(c.list, WithCrossings(2, /*segment=*/10)).logit_rows(), 2)
      << "a prompt that was cut draws nothing";
}

}  // namespace
}  // namespace mneme
