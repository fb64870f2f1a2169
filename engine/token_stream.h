// The only way out of the engine: a bounded queue of one request's events.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/request.h"

namespace mneme {

// Written by the loop, read by one reader (an RPC, a test). Thread-safe.
//
// Back-pressure: at `capacity` events the stream is full, and the engine stops running the request
// until the reader has taken half of them. What is under way may add a few more (three per choice),
// and the last event always fits, so a reader always learns how the request ended.
class TokenStream {
 public:
  explicit TokenStream(int capacity) : capacity_(capacity) {}
  TokenStream(const TokenStream&) = delete;
  TokenStream& operator=(const TokenStream&) = delete;

  // --- Reader ---

  // Blocks until an event is there or `timeout` passes (then nullopt). After the event with
  // is_last, nothing follows.
  std::optional<TokenEvent> Next(absl::Duration timeout = absl::InfiniteDuration());
  // Non-blocking: an event if one is queued.
  std::optional<TokenEvent> TryNext();
  // `callback` runs on the notifier thread whenever events were added after TryNext returned
  // nullopt. Set once, before the first TryNext. It must return quickly. Setting nullptr removes
  // it: when that call returns the callback is not running and never will, unless the call was made
  // from inside it.
  void SetReadyCallback(std::function<void()> callback);
  // The request should end; the session keeps what was fed. Idempotent. Events still come, the last
  // one with CANCELLED unless the request had ended by itself.
  void Cancel();
  // Nobody will read any more, but the request should go on (Request::detached): events are thrown
  // away from now on.
  void Abandon();

  // --- Engine ---

  // `wake` runs, under the stream's lock, when the reader made room or cancelled. Dropped with the
  // last event. Set before the reader has the stream.
  void SetWaker(std::function<void()> wake);
  // True if the reader is waiting for its callback: NotifyReader has to be called.
  [[nodiscard]] bool Push(TokenEvent event);
  bool full() const { return full_.load(std::memory_order_relaxed); }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  // Notifier thread: runs the ready callback if the reader is waiting for one.
  void NotifyReader();

 private:
  std::optional<TokenEvent> Pop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasEvent() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !events_.empty(); }
  bool CallbackIdle() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !callback_running_; }

  const int capacity_;
  // The loop looks at these in every step: not beside what the reader writes to for every event.
  alignas(64) std::atomic<bool> full_{false};
  std::atomic<bool> cancelled_{false};
  alignas(64) mutable absl::Mutex mu_;
  std::deque<TokenEvent> events_ ABSL_GUARDED_BY(mu_);
  bool abandoned_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;  // the last event was pushed
  bool reader_waiting_ ABSL_GUARDED_BY(mu_) = false;
  bool callback_running_ ABSL_GUARDED_BY(mu_) = false;
  bool callback_replaced_ ABSL_GUARDED_BY(mu_) = false;  // from inside itself
  std::thread::id callback_thread_ ABSL_GUARDED_BY(mu_);
  std::function<void()> ready_ ABSL_GUARDED_BY(mu_);
  std::function<void()> wake_ ABSL_GUARDED_BY(mu_);
};

// Appends `next` to `event` if both are plain tokens of one choice; false, changing nothing, if
// not. For readers that fall behind, and for records.
bool MergeEvents(TokenEvent& event, TokenEvent& next);

}  // namespace mneme
