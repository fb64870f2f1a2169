#include "server/requests/executor.h"

#include <utility>

#include "engine/status_payload.h"

namespace mneme {

Executor::Executor(int threads, size_t capacity) : capacity_(capacity) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
}

Executor::~Executor() {
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

bool Executor::TryPost(std::function<void()> task) {
  absl::MutexLock lock(&mu_);
  if (tasks_.size() >= capacity_) return false;
  tasks_.push_back(std::move(task));
  return true;
}

void Executor::Work() {
  while (true) {
    std::function<void()> task;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &Executor::HasWork));
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

absl::Status TooManyTasks() { return QueueFullError("too many calls of this kind are waiting"); }

}  // namespace mneme
