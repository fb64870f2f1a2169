// Bounded many-to-one queue: the only way into the engine loop.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace mneme {

// Pushing never blocks: a full mailbox is overload, and the caller must say so to its client.
template <typename T>
class Mailbox {
 public:
  explicit Mailbox(size_t capacity) : capacity_(capacity) {}

  // False, leaving `item` untouched, if the mailbox is full or closed.
  [[nodiscard]] bool TryPush(T&& item) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (closed_ || items_.size() >= capacity_) return false;
    items_.push_back(std::move(item));
    return true;
  }

  // Ends the wait of the current or the next Drain: something changed that is not an item.
  void Wake() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    woken_ = true;
  }

  // Nothing can be pushed any more; what is queued stays.
  void Close() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }

  // Takes everything queued, waiting up to `timeout` for the first item, Wake() or Close().
  std::vector<T> Drain(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (timeout > absl::ZeroDuration()) {
      mu_.AwaitWithTimeout(absl::Condition(this, &Mailbox::Ready), timeout);
    }
    woken_ = false;
    return std::exchange(items_, {});
  }

  // Whether Drain would return at once.
  bool ready() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return Ready();
  }

  bool closed() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return closed_;
  }

 private:
  bool Ready() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return closed_ || woken_ || !items_.empty();
  }

  const size_t capacity_;
  mutable absl::Mutex mu_;
  std::vector<T> items_ ABSL_GUARDED_BY(mu_);
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace mneme
