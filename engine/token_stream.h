// The only way out of the engine: a bounded queue of one request's events.
#pragma once

#include <deque>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/request.h"

namespace mneme {

// Written by the loop, read by one reader (an RPC, a test). Thread-safe. The last event always
// fits, so a reader always learns how the request ended.
class TokenStream {
 public:
  explicit TokenStream(int capacity) : capacity_(capacity) {}

  // Reader. Blocks until an event is there or `timeout` passes (then nullopt). After the event with
  // is_last, nothing follows.
  std::optional<TokenEvent> Next(absl::Duration timeout = absl::InfiniteDuration());
  // Reader, non-blocking: an event if one is queued.
  std::optional<TokenEvent> TryNext();
  // Reader: `callback` runs on the notifier thread whenever events were added after TryNext
  // returned nullopt. Set once, before the first TryNext. It must return quickly.
  void SetReadyCallback(std::function<void()> callback);
  // Reader: the request should end; the session keeps what was fed. Idempotent.
  void Cancel();

  // Loop.
  bool TryPush(TokenEvent event);  // false, leaving nothing behind, when full and not event.is_last
  bool full() const;
  bool cancelled() const;
  // Notifier thread: runs the ready callback if the reader is waiting for one.
  void NotifyReader();

 private:
  const int capacity_;
  mutable absl::Mutex mu_;
  std::deque<TokenEvent> events_ ABSL_GUARDED_BY(mu_);
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  bool reader_waiting_ ABSL_GUARDED_BY(mu_) = false;
  std::function<void()> ready_ ABSL_GUARDED_BY(mu_);
};

}  // namespace mneme
