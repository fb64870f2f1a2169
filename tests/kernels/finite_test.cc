#include "kernels/finite.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace mneme {
namespace {

// Every place of a tensor of every length up to a few vectors, so that no tail is skipped.
template <typename T>
void ExpectFound(DType dtype, T plain, const std::vector<T>& bad) {
  for (int64_t n = 1; n <= 70; ++n) {
    std::vector<T> values(static_cast<size_t>(n), plain);
    EXPECT_TRUE(AllFinite({values.data(), dtype, {n}})) << Name(dtype) << " " << n;
    for (int64_t i = 0; i < n; ++i) {
      values[i] = bad[static_cast<size_t>(i) % bad.size()];
      EXPECT_FALSE(AllFinite({values.data(), dtype, {n}}))
          << Name(dtype) << " " << i << " of " << n;
      values[i] = plain;
    }
  }
}

TEST(AllFiniteTest, FindsOneBadValueAnywhere) {
  ExpectFound<float>(DType::kF32, -3e38f, {NAN, INFINITY, -INFINITY, -NAN});
  ExpectFound<double>(DType::kF64, 1e308, {NAN, INFINITY, -INFINITY, -NAN});
  ExpectFound<uint16_t>(DType::kBF16, 0xff7f, {0x7f80, 0xff80, 0x7f81, 0xffff});
  ExpectFound<uint16_t>(DType::kF16, 0xfbff, {0x7c00, 0xfc00, 0x7c01, 0xffff});
}

TEST(AllFiniteTest, DenormalsAndZerosAreFinite) {
  std::vector<float> values = {0.0f, -0.0f, std::numeric_limits<float>::denorm_min()};
  EXPECT_TRUE(AllFinite({values.data(), DType::kF32, {3}}));
  std::vector<uint16_t> bits = {0x0001, 0x8000, 0x03ff};
  EXPECT_TRUE(AllFinite({bits.data(), DType::kBF16, {3}}));
  EXPECT_TRUE(AllFinite({bits.data(), DType::kF16, {3}}));
}

TEST(AllFiniteTest, IntegersAndEmptyTensorsPass) {
  std::vector<int32_t> values = {-1, 0x7f800000, 0x7fc00000};
  EXPECT_TRUE(AllFinite({values.data(), DType::kI32, {3}}));
  EXPECT_TRUE(AllFinite({values.data(), DType::kF32, {0}}));
}

}  // namespace
}  // namespace mneme
