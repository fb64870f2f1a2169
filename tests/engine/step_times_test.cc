#include "engine/step_times.h"

#include "engine/scheduler.h"
#include "gtest/gtest.h"

namespace mneme {
namespace {

constexpr int kRows = 32;

TEST(StepTimesTest, EachSizeHasAMeanOfItsOwn) {
  StepTimes times(8192);
  for (int size = 1; size <= 8192; size = NextLikelyStepTokens(size)) {
    EXPECT_LT(times.Added(kRows, size, 0), 0) << size;
    times.Observe(kRows, size, size, 0);
    times.Observe(kRows, size, size + 2.0, 0);
  }
  for (int size = 1; size <= 8192; size = NextLikelyStepTokens(size)) {
    EXPECT_DOUBLE_EQ(times.Added(kRows, size, 1), size + 1) << size;
  }
}

TEST(StepTimesTest, OtherSizesAreNotRemembered) {
  StepTimes times(1000);
  for (const int size : {770, 1000, 1024, 1 << 20}) {
    times.Observe(kRows, size, 1, 0);
    EXPECT_LT(times.Added(kRows, size, 0), 0) << size;
  }
  times.Observe(kRows, 960, 1, 0);  // the largest one
  EXPECT_EQ(times.Added(kRows, 960, 0), 1);
}

TEST(StepTimesTest, WhatComesLaterCountsAndASingleStepLittle) {
  StepTimes times(8192);
  for (int i = 0; i < 50; ++i) times.Observe(kRows, 768, 1, i);
  times.Observe(kRows, 768, 9, 50);
  EXPECT_DOUBLE_EQ(times.Added(kRows, 768, 51), 2);
  for (int i = 51; i < 100; ++i) times.Observe(kRows, 768, 3, i);
  EXPECT_NEAR(times.Added(kRows, 768, 100), 3, 0.01);
}

TEST(StepTimesTest, ASizeNotSeenForLongIsNotKnown) {
  StepTimes times(8192);
  times.Observe(kRows, 768, 5, 100);
  EXPECT_EQ(times.Added(kRows, 768, 499), 5);
  EXPECT_LT(times.Added(kRows, 768, 500), 0);
  times.Observe(kRows, 768, 1, 500);
  EXPECT_EQ(times.Added(kRows, 768, 500), 1) << "what it was long ago does not count";
}

TEST(StepTimesTest, BesideOtherRowsItIsAnotherMatter) {
  StepTimes times(8192);
  times.Observe(kRows, 768, 5, 0);
  EXPECT_EQ(times.Added(kRows + 2, 768, 0), 5);
  EXPECT_LT(times.Added(2 * kRows, 768, 0), 0);
  EXPECT_LT(times.Added(kRows / 2, 768, 0), 0);
  times.Observe(2 * kRows, 768, 1, 1);
  EXPECT_EQ(times.Added(2 * kRows, 768, 1), 1);
}

}  // namespace
}  // namespace mneme
