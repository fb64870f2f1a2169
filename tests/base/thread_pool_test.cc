#include "base/thread_pool.h"

#include <time.h>

#include <atomic>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace mneme {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

class ThreadPoolTest : public ::testing::TestWithParam<int> {
 protected:
  // No spinning on one half of the calls, so that both ways of waiting are met.
  static ThreadPoolOptions Options(absl::Duration spin) {
    return {.threads = GetParam(), .spin = spin};
  }
};

TEST_P(ThreadPoolTest, RunCallsEveryWorkerOnceAndTheCallerIsWorkerZero) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.threads(), GetParam());
  std::vector<int> calls(pool.threads());
  std::vector<std::thread::id> ids(pool.threads());
  pool.Run([&](int worker) {
    ++calls[worker];
    ids[worker] = std::this_thread::get_id();
  });
  EXPECT_THAT(calls, Each(1));
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  EXPECT_EQ(std::set(ids.begin(), ids.end()).size(), ids.size());
}

TEST_P(ThreadPoolTest, EveryIndexIsCoveredExactlyOnce) {
  ThreadPool pool(GetParam());
  for (const int64_t n : {0, 1, 2, 3, 7, 64, 1000}) {
    for (const int64_t grain : {1, 3, 16, 2000}) {
      std::vector<int> fixed(n);
      pool.ParallelFor(n, grain, [&](int64_t begin, int64_t end, int worker) {
        EXPECT_EQ(begin % grain, 0);
        EXPECT_LT(begin, end);
        EXPECT_LT(worker, pool.threads());
        for (int64_t i = begin; i < end; ++i) ++fixed[i];
      });
      EXPECT_THAT(fixed, Each(1)) << "n " << n << " grain " << grain;

      std::vector<int> dynamic(n);
      pool.ParallelForDynamic(n, grain, [&](int64_t begin, int64_t end, int) {
        EXPECT_LT(begin, end);
        for (int64_t i = begin; i < end; ++i) ++dynamic[i];
      });
      EXPECT_THAT(dynamic, Each(1)) << "n " << n << " chunk " << grain;
    }
  }
}

TEST_P(ThreadPoolTest, TheFixedSplitIsNearlyEvenAndAlwaysTheSame) {
  ThreadPool pool(GetParam());
  const auto split = [&] {
    std::vector<std::pair<int64_t, int64_t>> ranges(pool.threads());
    pool.ParallelFor(1003, [&](int64_t begin, int64_t end, int worker) {
      ranges[worker] = {begin, end};
    });
    return ranges;
  };
  const auto first = split();
  for (const auto& [begin, end] : first) {
    EXPECT_GE(end - begin, 1003 / pool.threads());
    EXPECT_LE(end - begin, 1003 / pool.threads() + 1);
  }
  for (int i = 0; i < 100; ++i) ASSERT_EQ(split(), first);
}

// Each call reads on other workers what the one before wrote: a missing barrier shows up as a wrong
// sum here, and as a race under ThreadSanitizer.
TEST_P(ThreadPoolTest, CallsAreOrderedWhetherWorkersSpinOrSleep) {
  for (const absl::Duration spin : {absl::ZeroDuration(), absl::Microseconds(100)}) {
    ThreadPool pool(Options(spin));
    constexpr int kItems = 257;
    std::vector<int64_t> a(kItems, 1);
    std::vector<int64_t> b(kItems, 0);
    constexpr int kRounds = 400;
    for (int round = 0; round < kRounds; ++round) {
      pool.ParallelFor(kItems, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) b[kItems - 1 - i] = a[i] + 1;
      });
      std::swap(a, b);
    }
    EXPECT_THAT(a, Each(1 + kRounds));
  }
}

TEST_P(ThreadPoolTest, InitRunsFirstOnEveryStartedWorker) {
  std::vector<std::atomic<int>> initialized(GetParam());
  ThreadPoolOptions options = Options(absl::Microseconds(100));
  options.init = [&](int worker) { initialized[worker].fetch_add(1); };
  ThreadPool pool(options);
  std::vector<int> seen(pool.threads());
  pool.Run([&](int worker) { seen[worker] = initialized[worker].load(); });
  EXPECT_EQ(seen[0], 0);
  seen.erase(seen.begin());
  EXPECT_THAT(seen, Each(1));
}

TEST_P(ThreadPoolTest, PoolsThatNeverWorkedShutDown) {
  for (int i = 0; i < 20; ++i) ThreadPool pool(Options(absl::ZeroDuration()));
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, ::testing::Values(1, 2, 3, 8),
                         [](const auto& info) { return absl::StrCat(info.param); });

TEST(ThreadPoolIdleTest, AnIdlePoolUsesNoProcessorTime) {
  const auto cpu_seconds = [] {
    timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
  };
  ThreadPool pool({.threads = 4, .spin = absl::Microseconds(50)});
  pool.Run([](int) {});
  const double before = cpu_seconds();
  // Time has to pass for this one; nothing waits for an event that might come late.
  const timespec idle = {.tv_sec = 0, .tv_nsec = 200'000'000};
  nanosleep(&idle, nullptr);
  const double used = cpu_seconds() - before;
  EXPECT_LT(used, 0.1) << "three workers spinning would have used up to 0.6 s";
}

TEST(ThreadPoolSizeTest, ZeroThreadsMeansAllAvailable) {
  EXPECT_GE(AvailableCpus(), 1);
  EXPECT_EQ(ThreadPool(0).threads(), AvailableCpus());
}

TEST(ThreadPoolDeathTest, ATaskMayNotCallItsOwnPool) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        ThreadPool pool(2);
        pool.Run([&](int) { pool.Run([](int) {}); });
      },
      "called by two threads at once or by a task");
}

}  // namespace
}  // namespace mneme
