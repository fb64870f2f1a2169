// Without any one of its syncs, the store would lose what it has promised to keep.
#include <cstdint>
#include <cstdio>
#include <set>
#include <string>

#include "gtest/gtest.h"
#include "tests/store/crash_history.h"

namespace mneme {
namespace {

constexpr int kSteps = 12;
constexpr uint64_t kSeeds = 600;

TEST(EverySyncTest, IsNeeded) {
  std::set<std::string> sites;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    sites.merge(CrashHistory::Run(seed, kSteps, "").sync_sites);
  }
  for (const std::string& site : sites) {
    uint64_t seed = 1;
    while (seed <= kSeeds && CrashHistory::Run(seed, kSteps, site).violation.empty()) ++seed;
    EXPECT_LE(seed, kSeeds) << "nothing is lost without the sync at " << site;
    std::fflush(stdout);
    std::printf("%s: seed %d\n", site.c_str(), static_cast<int>(seed));
  }
}

}  // namespace
}  // namespace mneme
