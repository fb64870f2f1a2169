#include "base/number_text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>

namespace mneme {
namespace {

TEST(NumberTextTest, NumbersAreWrittenAsPeopleWriteThem) {
  EXPECT_EQ(NumberText(0.7), "0.7");
  EXPECT_EQ(NumberText(0.7f), "0.7");
  EXPECT_EQ(NumberText(1.05f), "1.05");
  EXPECT_EQ(NumberText(0.0), "0");
  EXPECT_EQ(NumberText(-2.0), "-2");
  EXPECT_EQ(NumberText(100000.0), "100000");
  EXPECT_EQ(NumberText(0.00001), "0.00001");
  EXPECT_EQ(NumberText(1e-6), "1e-06");
  EXPECT_EQ(NumberText(1e20), "1e+20");
  EXPECT_EQ(NumberText(100.00001), "100.00001") << "six digits would make 100 of it";
  EXPECT_EQ(NumberText(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(NumberText(std::nan("")), "nan");
}

TEST(NumberTextTest, EveryNumberReadsBack) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    const double value =
        std::ldexp(static_cast<double>(random()) - 0x1p63, static_cast<int>(random() % 1500) - 900);
    EXPECT_EQ(std::stod(NumberText(value)), value);
    const auto narrow = static_cast<float>(
        std::ldexp(static_cast<double>(random()) - 0x1p63, static_cast<int>(random() % 200) - 170));
    EXPECT_EQ(std::stof(NumberText(narrow)), narrow);
  }
}

}  // namespace
}  // namespace mneme
