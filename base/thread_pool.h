// Fixed workers for the CPU kernels: low latency while a step runs, no CPU use between requests.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"

namespace mneme {

// Processors this process may use: its affinity mask, cut to the control group's CPU quota.
int AvailableCpus();

struct ThreadPoolOptions {
  int threads = 0;  // the caller included; 0: AvailableCpus()
  // Runs first on each worker the pool starts, for example to set the floating-point mode. The
  // caller's thread, which is worker 0, is left alone.
  std::function<void(int worker)> init = nullptr;
  // A waiting thread spins this long before it sleeps. Longer than the gap between two kernels of a
  // step, or each kernel pays a wake-up of some 50 us.
  absl::Duration spin = absl::Microseconds(100);
};

// One thread at a time may call Run and ParallelFor, and no task may call back into its pool. Each
// call returns when all workers are done, and everything they wrote is visible to the caller.
// Nothing is ever summed across workers, so results need not depend on their number.
class ThreadPool {
 public:
  explicit ThreadPool(const ThreadPoolOptions& options = {});
  explicit ThreadPool(int threads) : ThreadPool(ThreadPoolOptions{.threads = threads}) {}
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Calls task(worker) once on every worker 0 .. threads() - 1; worker 0 is the caller.
  void Run(absl::FunctionRef<void(int worker)> task);

  using Range = absl::FunctionRef<void(int64_t begin, int64_t end, int worker)>;

  // Splits [0, n) into at most threads() contiguous ranges of nearly equal size that begin at
  // multiples of `grain`; worker w always gets the same one, so its caches and memory stay its own.
  void ParallelFor(int64_t n, Range task) { ParallelFor(n, 1, task); }
  void ParallelFor(int64_t n, int64_t grain, Range task);

  // Workers take ranges of `chunk` items as they become free: for items of uneven cost.
  void ParallelForDynamic(int64_t n, int64_t chunk, Range task);

 private:
  void WorkerLoop(int worker);
  // True as soon as done() holds, false if it does not within the spinning time.
  template <typename Predicate>
  bool Spin(Predicate done) const;

  const int threads_;
  const absl::Duration spin_;

  // Written by the caller before it advances epoch_, read by workers after they saw it advance.
  const absl::FunctionRef<void(int worker)>* task_ = nullptr;
  alignas(64) std::atomic<uint32_t> epoch_{0};  // counts the calls of Run
  alignas(64) std::atomic<int> running_{0};     // workers that have yet to finish this call
  alignas(64) std::atomic<int> sleeping_workers_{0};
  std::atomic<bool> caller_sleeps_{false};
  std::atomic<bool> in_run_{false};
  std::atomic<bool> stopping_{false};

  // For sleeping only. Whoever sleeps announces it before the last look at what it waits for;
  // whoever changes that looks at the announcement afterwards. All four are sequentially
  // consistent, so one of the two sees the other.
  std::mutex mu_;
  std::condition_variable work_;
  std::condition_variable finished_;

  std::vector<std::thread> workers_;  // last: started when all else is set up
};

}  // namespace mneme
