#include "engine/crossing_budget.h"

#include <algorithm>
#include <optional>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace mneme {
namespace {

// A machine whose step takes `base` + `per_row` d, and with crossings `fixed` + `each` c more.
struct CrossingMachine {
  double base, per_row, fixed, each;
  double noise = 0;  // relative, either way

  double Seconds(int rows, int crossings) const {
    return base + per_row * rows + (crossings > 0 ? fixed + each * crossings : 0);
  }
};

constexpr double kSlowdown = 2.5;

struct CrossingOutcome {
  int most;               // at the end
  double worst_slowdown;  // 99th percentile of the later steps' times over that without crossings
};

// Rows that decode, of which `wanting` want to cross in every third step.
CrossingOutcome Simulate(const CrossingMachine& machine, int rows, int wanting, uint64_t seed) {
  CrossingBudget budget(/*max_rows=*/256, kSlowdown);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> noise(1 - machine.noise, 1 + machine.noise);
  std::vector<double> times;
  for (int step = 0; step < 900; ++step) {
    const int most = budget.Most(rows);
    EXPECT_GE(most, 1);
    EXPECT_LE(most, 256);
    const int crossings = step % 3 == 2 ? std::min(wanting, most) : 0;
    const double seconds = machine.Seconds(rows, crossings) * noise(random);
    budget.Observe(rows, crossings, absl::Seconds(seconds));
    if (step >= 300) times.push_back(seconds);
  }
  std::sort(times.begin(), times.end());
  return {budget.Most(rows), times[times.size() * 99 / 100] / machine.Seconds(rows, 0)};
}

TEST(CrossingBudgetTest, NoLimitMeansAllRows) {
  CrossingBudget budget(64, /*slowdown=*/1);
  EXPECT_EQ(budget.Most(1), 64);
  budget.Observe(32, 0, absl::Milliseconds(1));
  budget.Observe(32, 32, absl::Milliseconds(500));
  EXPECT_EQ(budget.Most(32), 64);
}

TEST(CrossingBudgetTest, WhatCrossingsTookIsToldOnceThereIsSomethingToCompareWith) {
  CrossingBudget budget(/*max_rows=*/64, kSlowdown);
  EXPECT_EQ(budget.Observe(32, 2, absl::Milliseconds(9)), std::nullopt);
  EXPECT_EQ(budget.Observe(32, 0, absl::Milliseconds(4)), std::nullopt);
  const auto took = [&](int milliseconds) {
    return absl::ToDoubleMilliseconds(
        budget.Observe(32, 2, absl::Milliseconds(milliseconds)).value_or(absl::Seconds(-1)));
  };
  EXPECT_NEAR(took(9), 5, 1e-9);
  EXPECT_NEAR(took(400), 396, 1e-9) << "as it was, a hiccup too";
  EXPECT_EQ(took(3), 0);
  EXPECT_EQ(budget.Observe(8, 2, absl::Milliseconds(9)), std::nullopt) << "of other sizes";
}

TEST(CrossingBudgetTest, FewCrossWhileNothingIsKnown) {
  EXPECT_EQ(CrossingBudget(64, kSlowdown).Most(32), 8);
  EXPECT_EQ(CrossingBudget(4, kSlowdown).Most(4), 4);
}

TEST(CrossingBudgetTest, AsManyCrossAsTheSlowdownAllows) {
  // 1.5 D = 3 ms are 0.6 + 24 x 0.1.
  for (const double noise : {0.0, 0.1}) {
    const CrossingMachine machine = {
        .base = 1e-3, .per_row = 1e-5, .fixed = 6e-4, .each = 1e-4, .noise = noise};
    const CrossingOutcome outcome = Simulate(machine, /*rows=*/100, /*wanting=*/100, /*seed=*/1);
    EXPECT_GE(outcome.most, 16) << noise;
    EXPECT_LE(outcome.most, 27) << noise;
    EXPECT_LE(outcome.worst_slowdown, kSlowdown * (1 + 3 * noise) + 0.01);
  }
}

TEST(CrossingBudgetTest, ThoseWhoAreFewAllCross) {
  const CrossingMachine machine = {.base = 1e-3, .per_row = 1e-5, .fixed = 6e-4, .each = 1e-4};
  EXPECT_GE(Simulate(machine, 100, /*wanting=*/5, /*seed=*/2).most, 5);
}

TEST(CrossingBudgetTest, OneCrossesWhereEvenThatIsTooLong) {
  const CrossingMachine machine = {
      .base = 1e-4, .per_row = 0, .fixed = 1e-3, .each = 1e-3, .noise = 0.05};
  EXPECT_EQ(Simulate(machine, 32, 32, /*seed=*/3).most, 1);
}

TEST(CrossingBudgetTest, AHiccupIsForgiven) {
  CrossingBudget budget(64, kSlowdown);
  for (int i = 0; i < 40; ++i) {
    budget.Observe(32, 0, absl::Milliseconds(1));
    budget.Observe(32, 8, absl::Microseconds(1800));
  }
  const int before = budget.Most(32);
  EXPECT_GE(before, 14) << "0.8 of 1.5 ms for 8";
  budget.Observe(32, 8, absl::Milliseconds(300));
  EXPECT_GE(budget.Most(32), 12);
}

TEST(CrossingBudgetTest, WhatAddsTimeIsKnownToThoseWhoShareTheStep) {
  CrossingBudget budget(64, kSlowdown);
  EXPECT_EQ(budget.Added(4), 0);
  budget.Observe(32, 0, absl::Milliseconds(1));
  budget.Observe(32, 4, absl::Milliseconds(2));
  EXPECT_NEAR(budget.Added(4), 1e-3, 1e-9);
  EXPECT_NEAR(budget.Added(8), 2e-3, 1e-9) << "at most proportional";
  EXPECT_NEAR(budget.Added(2), 1e-3, 1e-9) << "at most as much";
  EXPECT_EQ(budget.Added(0), 0);
}

}  // namespace
}  // namespace mneme
