#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "base/control_group.h"
#include "base/log.h"

namespace mneme {
namespace {

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The processors that so much time in each period amounts to, rounded up.
int ToCpus(double quota, double period) {
  return static_cast<int>(std::min((quota + period - 1) / period, 1e6));
}

// Processors' worth of time the control groups allow; INT_MAX where they set no limit.
int CpuQuota() {
  int cpus = std::numeric_limits<int>::max();
  double quota = 0;  // microseconds in each period; "max", which is no number, without a limit
  double period = 0;
  for (const std::string& folder : ControlGroups()) {
    std::ifstream limit(folder + "/cpu.max");
    if (limit >> quota >> period && period > 0) cpus = std::min(cpus, ToCpus(quota, period));
  }
  std::ifstream v1_quota("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  std::ifstream v1_period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (v1_quota >> quota && v1_period >> period && quota > 0 && period > 0) {
    cpus = std::min(cpus, ToCpus(quota, period));
  }
  return cpus;
}

}  // namespace

int AvailableCpus() {
  int cpus = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) cpus = CPU_COUNT(&allowed);
  return std::max(std::min(cpus, CpuQuota()), 1);
}

ThreadPool::ThreadPool(const ThreadPoolOptions& options)
    : threads_(options.threads > 0 ? options.threads : AvailableCpus()), spin_(options.spin) {
  workers_.reserve(static_cast<size_t>(threads_ - 1));
  for (int worker = 1; worker < threads_; ++worker) {
    workers_.emplace_back([this, worker, init = options.init] {
      if (init) init(worker);
      WorkerLoop(worker);
    });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mu_);
    stopping_.store(true);
  }
  work_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

template <typename Predicate>
bool ThreadPool::Spin(Predicate done) const {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + absl::ToChronoNanoseconds(spin_);
  do {
    // Some microseconds of waiting between two looks at the clock.
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      Pause();
    }
  } while (Clock::now() < end);
  return false;
}

void ThreadPool::WorkerLoop(int worker) {
  uint32_t seen = 0;
  const auto woken = [&] { return epoch_.load() != seen || stopping_.load(); };
  while (true) {
    if (!Spin(woken)) {
      sleeping_workers_.fetch_add(1);
      {
        std::unique_lock lock(mu_);
        work_.wait(lock, woken);
      }
      sleeping_workers_.fetch_sub(1);
    }
    if (epoch_.load() == seen) return;  // Stopping, and no call is waiting for this worker.
    ++seen;
    (*task_)(worker);
    if (running_.fetch_sub(1) == 1 && caller_sleeps_.load()) {
      {
        std::lock_guard lock(mu_);
      }  // The caller is in wait(), not between its look and its sleep.
      finished_.notify_one();
    }
  }
}

void ThreadPool::Run(absl::FunctionRef<void(int worker)> task) {
  CHECK(!in_run_.exchange(true)) << "ThreadPool::Run called by two threads at once or by a task";
  if (threads_ > 1) {
    task_ = &task;
    running_.store(threads_ - 1);
    epoch_.fetch_add(1);
    if (sleeping_workers_.load() > 0) {
      { std::lock_guard lock(mu_); }
      work_.notify_all();
    }
  }
  task(0);
  const auto finished = [this] { return running_.load() == 0; };
  if (!Spin(finished)) {
    caller_sleeps_.store(true);
    {
      std::unique_lock lock(mu_);
      finished_.wait(lock, finished);
    }
    caller_sleeps_.store(false);
  }
  in_run_.store(false);
}

void ThreadPool::ParallelFor(int64_t n, int64_t grain, Range task) {
  CHECK_GT(grain, 0);
  if (n <= 0) return;
  const int64_t grains = (n + grain - 1) / grain;
  const int64_t ranges = std::min<int64_t>(grains, threads_);
  if (ranges == 1) {
    task(0, n, 0);
    return;
  }
  Run([&](int worker) {
    if (worker >= ranges) return;
    const int64_t begin = grains * worker / ranges * grain;
    const int64_t end = std::min(n, grains * (worker + 1) / ranges * grain);
    task(begin, end, worker);
  });
}

void ThreadPool::ParallelForDynamic(int64_t n, int64_t chunk, Range task) {
  CHECK_GT(chunk, 0);
  if (n <= 0) return;
  if (n <= chunk || threads_ == 1) {
    task(0, n, 0);
    return;
  }
  std::atomic<int64_t> next{0};
  Run([&](int worker) {
    while (true) {
      const int64_t begin = next.fetch_add(chunk, std::memory_order_relaxed);
      if (begin >= n) return;
      task(begin, std::min(n, begin + chunk), worker);
    }
  });
}

}  // namespace mneme
