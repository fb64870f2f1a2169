#include "base/human_bytes.h"

#include "gtest/gtest.h"

namespace mneme {
namespace {

TEST(HumanBytesTest, TakesTheLargestUnitThatFits) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1024), "1.0 KiB");
  EXPECT_EQ(HumanBytes(128040960), "122.1 MiB");
  EXPECT_EQ(HumanBytes(int64_t{3} << 29), "1.5 GiB");
  EXPECT_EQ(HumanBytes(int64_t{5000} << 40), "5000.0 TiB");
}

}  // namespace
}  // namespace mneme
