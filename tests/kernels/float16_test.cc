#include "kernels/float16.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "gtest/gtest.h"

namespace mneme {
namespace {

TEST(BF16Test, EveryPatternSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float wide = F32FromBF16(static_cast<uint16_t>(bits));
    const uint16_t back = BF16FromF32(wide);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(F32FromBF16(back))) << bits;
    } else {
      ASSERT_EQ(back, bits);
    }
  }
}

TEST(F16Test, EveryPatternSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float wide = F32FromF16(static_cast<uint16_t>(bits));
    const uint16_t back = F16FromF32(wide);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(F32FromF16(back))) << bits;
    } else {
      ASSERT_EQ(back, bits);
    }
  }
}

// Between two neighbours a < b the midpoint goes to the one with the even pattern, and one f32 step
// to either side of it decides for the nearer one. Signs mirror.
template <typename Widen, typename Narrow>
void CheckRounding(uint16_t largest_finite, Widen widen, Narrow narrow) {
  for (uint32_t bits = 0; bits < largest_finite; ++bits) {
    const uint16_t low = static_cast<uint16_t>(bits), high = static_cast<uint16_t>(bits + 1);
    const double a = widen(low), b = widen(high);
    const float middle = static_cast<float>((a + b) / 2);
    if (middle != (a + b) / 2) continue;  // below what f32 resolves
    const uint16_t even = bits % 2 == 0 ? low : high;
    ASSERT_EQ(narrow(middle), even) << a << " | " << b;
    ASSERT_EQ(narrow(-middle), even | 0x8000) << a << " | " << b;
    ASSERT_EQ(narrow(std::nextafter(middle, 0.0f)), low) << a << " | " << b;
    ASSERT_EQ(narrow(std::nextafter(middle, INFINITY)), high) << a << " | " << b;
  }
}

TEST(BF16Test, RoundsToNearestTiesToEven) { CheckRounding(0x7f7f, F32FromBF16, BF16FromF32); }

TEST(F16Test, RoundsToNearestTiesToEven) { CheckRounding(0x7bff, F32FromF16, F16FromF32); }

TEST(BF16Test, OverflowsToInfinityAndKeepsNaN) {
  EXPECT_EQ(BF16FromF32(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(BF16FromF32(-INFINITY), 0xff80);
  // A NaN whose payload lies in the lower half must not become infinity.
  EXPECT_TRUE(std::isnan(F32FromBF16(BF16FromF32(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(F32FromBF16(BF16FromF32(std::bit_cast<float>(0xffffffffu)))));
}

TEST(F16Test, KnownValues) {
  EXPECT_EQ(F16FromF32(1.0f), 0x3c00);
  EXPECT_EQ(F16FromF32(-2.0f), 0xc000);
  EXPECT_EQ(F16FromF32(65504.0f), 0x7bff);
  EXPECT_EQ(F16FromF32(65519.0f), 0x7bff);
  EXPECT_EQ(F16FromF32(65520.0f), 0x7c00);
  EXPECT_EQ(F16FromF32(0x1p-24f), 0x0001);
  EXPECT_EQ(F16FromF32(0x1p-25f), 0x0000);
  EXPECT_EQ(F16FromF32(-0x1.8p-25f), 0x8001);
  EXPECT_EQ(F32FromF16(0x0400), 0x1p-14f);
  EXPECT_EQ(F32FromF16(0x03ff), 1023 * 0x1p-24f);
  EXPECT_EQ(F32FromF16(0xfc00), -INFINITY);
  EXPECT_TRUE(std::isnan(F32FromF16(F16FromF32(NAN))));
  EXPECT_TRUE(std::isnan(F32FromF16(F16FromF32(std::bit_cast<float>(0x7f800001u)))));
}

TEST(BF16Test, KnownValues) {
  EXPECT_EQ(BF16FromF32(1.0f), 0x3f80);
  EXPECT_EQ(RoundToBF16(1.00390625f), 1.0f);       // 1 + 2^-8, a tie: even
  EXPECT_EQ(RoundToBF16(1.01171875f), 1.015625f);  // 1 + 3 * 2^-8, a tie: even
  EXPECT_EQ(RoundToBF16(3.14159274f), 3.140625f);
  EXPECT_EQ(F32FromBF16(0x0001), 0x1p-133f);
}

}  // namespace
}  // namespace mneme
