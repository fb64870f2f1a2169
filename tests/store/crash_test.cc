// What was acknowledged survives a power loss at any instant.
#include <cstdint>
#include <cstdio>
#include <string>

#include "gtest/gtest.h"
#include "tests/store/crash_history.h"

namespace mneme {
namespace {

constexpr int kSteps = 12;

TEST(CrashTest, NothingAcknowledgedIsLostAndNothingElseIsHalfThere) {
  int64_t crashes = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const CrashHistory::Result result = CrashHistory::Run(seed, kSteps, /*ignored_site=*/"");
    ASSERT_EQ(result.violation, "") << "seed " << seed;
    crashes += result.crashes;
  }
  std::printf("%lld crashes\n", static_cast<long long>(crashes));
  EXPECT_GT(crashes, 4'000);
}

}  // namespace
}  // namespace mneme
