// A few threads for what an RPC callback must not do itself: wait for the engine's loop, or
// tokenise a long text.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace mneme {

// Thread-safe. Tasks start in the order they were posted; the destructor runs all that are left.
// The queue is bounded: a full one is overload, and the caller must say so to its client.
class Executor {
 public:
  Executor(int threads, size_t capacity);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // False, and the task is dropped, if `capacity` others are waiting: TooManyTasks() says so.
  [[nodiscard]] bool TryPost(std::function<void()> task) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Work() ABSL_LOCKS_EXCLUDED(mu_);
  bool HasWork() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return closed_ || !tasks_.empty(); }

  const size_t capacity_;
  absl::Mutex mu_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

// RESOURCE_EXHAUSTED, with a time after which to try again.
absl::Status TooManyTasks();

}  // namespace mneme
