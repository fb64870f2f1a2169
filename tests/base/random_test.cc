#include "base/random.h"

#include <cmath>
#include <cstdint>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace mneme {
namespace {

// The known answers that come with the authors' Random123 library (kat_vectors, philox4x32 10).
TEST(PhiloxTest, GivesThePublishedAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomTest, SeedStreamAndCounterAllMatterInAllTheirBits) {
  std::set<PhiloxCounter> seen = {RandomBits(0, 0, 0)};
  for (int bit = 0; bit < 64; ++bit) {
    seen.insert(RandomBits(uint64_t{1} << bit, 0, 0));
    seen.insert(RandomBits(0, uint64_t{1} << bit, 0));
    seen.insert(RandomBits(0, 0, uint64_t{1} << bit));
  }
  EXPECT_EQ(seen.size(), 1 + 3 * 64);
}

TEST(RandomTest, UniformNumbersStayBelowOne) {
  EXPECT_EQ(UniformFloat(0u), 0.0f);
  EXPECT_EQ(UniformFloat(0xffffffffu), 1.0f - 0x1p-24f);
}

// Seed 1. The mean of n uniform numbers has a standard deviation of 1 / sqrt(12 n), their square's
// 0.298 / sqrt(n); five of them is the bound.
TEST(RandomTest, UniformNumbersHaveTheRightMoments) {
  constexpr int kDraws = 100'000;
  double sums[2] = {0, 0};
  double squares[2] = {0, 0};
  for (int i = 0; i < kDraws; ++i) {
    const double draws[2] = {UniformFloat(1, 0, i), UniformDouble(1, 1, i)};
    for (int k = 0; k < 2; ++k) {
      ASSERT_GE(draws[k], 0);
      ASSERT_LT(draws[k], 1);
      sums[k] += draws[k];
      squares[k] += draws[k] * draws[k];
    }
  }
  for (int k = 0; k < 2; ++k) {
    EXPECT_NEAR(sums[k] / kDraws, 1.0 / 2, 5 / std::sqrt(12.0 * kDraws));
    EXPECT_NEAR(squares[k] / kDraws, 1.0 / 3, 5 * 0.298 / std::sqrt(1.0 * kDraws));
  }
}

static_assert(UniformFloat(1, 2, 3) == UniformFloat(1, 2, 3), "usable in constant expressions");

}  // namespace
}  // namespace mneme
