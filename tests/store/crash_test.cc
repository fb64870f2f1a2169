// What was acknowledged survives a power loss at any instant, and every sync is needed for that.
#include <cstdint>
#include <cstdio>
#include <set>
#include <string>

#include "gtest/gtest.h"
#include "tests/store/crash_history.h"

namespace mneme {
namespace {

constexpr int kSteps = 12;

TEST(CrashTest, NothingAcknowledgedIsLostAndNothingElseIsHalfThere) {
  int64_t crashes = 0;
  for (uint64_t seed = getenv("SEED") ? atoi(getenv("SEED")) : 1; seed <= 200; ++seed) {
    const CrashHistory::Result result = CrashHistory::Run(seed, kSteps, /*ignored_site=*/"");
    ASSERT_EQ(result.violation, "") << "seed " << seed;
    crashes += result.crashes;
  }
  std::printf("%lld crashes\n", static_cast<long long>(crashes));
  EXPECT_GT(crashes, 10'000);
}

TEST(CrashTest, EverySyncIsNeeded) {
  std::set<std::string> sites;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    sites.merge(CrashHistory::Run(seed, kSteps, "").sync_sites);
  }
  for (const std::string& site : sites) {
    uint64_t seed = 1;
    while (seed <= 300 && CrashHistory::Run(seed, kSteps, site).violation.empty()) ++seed;
    EXPECT_LE(seed, 300) << "nothing is lost without the sync at " << site;
    std::printf("%s: seed %d\n", site.c_str(), static_cast<int>(seed));
  }
}

}  // namespace
}  // namespace mneme
