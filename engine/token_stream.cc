#include "engine/token_stream.h"

#include <iterator>
#include <utility>

#include "base/log.h"

namespace mneme {

std::optional<TokenEvent> TokenStream::Next(absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  mu_.AwaitWithTimeout(absl::Condition(this, &TokenStream::HasEvent), timeout);
  return Pop();
}

std::optional<TokenEvent> TokenStream::TryNext() {
  absl::MutexLock lock(&mu_);
  std::optional<TokenEvent> event = Pop();
  reader_waiting_ = !event.has_value();
  return event;
}

std::optional<TokenEvent> TokenStream::Pop() {
  if (events_.empty()) return std::nullopt;
  std::optional<TokenEvent> event = std::move(events_.front());
  events_.pop_front();
  if (full() && static_cast<int>(events_.size()) <= capacity_ / 2) {
    full_.store(false, std::memory_order_relaxed);
    if (wake_ != nullptr) wake_();
  }
  return event;
}

void TokenStream::SetReadyCallback(std::function<void()> callback) {
  absl::MutexLock lock(&mu_);
  if (callback_running_ && callback_thread_ == std::this_thread::get_id()) {
    callback_replaced_ = true;  // NotifyReader holds the function that is running
  } else {
    mu_.Await(absl::Condition(this, &TokenStream::CallbackIdle));
  }
  // The old one goes with the parameter, after the lock: what it holds may come back here.
  ready_.swap(callback);
}

void TokenStream::Cancel() {
  absl::MutexLock lock(&mu_);
  if (cancelled_.exchange(true, std::memory_order_relaxed)) return;
  if (wake_ != nullptr) wake_();
}

void TokenStream::Abandon() {
  absl::MutexLock lock(&mu_);
  abandoned_ = true;
  events_.clear();
  full_.store(false, std::memory_order_relaxed);
  if (wake_ != nullptr) wake_();
}

void TokenStream::SetWaker(std::function<void()> wake) {
  absl::MutexLock lock(&mu_);
  wake_ = std::move(wake);
}

bool TokenStream::Push(TokenEvent event) {
  absl::MutexLock lock(&mu_);
  CHECK(!ended_) << "an event after the last one";
  if (event.is_last) {
    ended_ = true;
    wake_ = nullptr;
  }
  if (abandoned_) return false;
  events_.push_back(std::move(event));
  if (static_cast<int>(events_.size()) >= capacity_) full_.store(true, std::memory_order_relaxed);
  return reader_waiting_ && (ready_ != nullptr || callback_running_);
}

void TokenStream::NotifyReader() {
  std::function<void()> callback;
  {
    absl::MutexLock lock(&mu_);
    if (!reader_waiting_ || events_.empty() || ready_ == nullptr) return;
    reader_waiting_ = false;
    callback_running_ = true;
    callback_thread_ = std::this_thread::get_id();
    callback = std::exchange(ready_, nullptr);
  }
  callback();
  absl::MutexLock lock(&mu_);
  callback_running_ = false;
  callback_thread_ = {};
  if (!callback_replaced_) ready_ = std::move(callback);
  callback_replaced_ = false;
}

bool MergeEvents(TokenEvent& event, TokenEvent& next) {
  const auto plain = [](const TokenEvent& e) {
    return !e.is_start && !e.is_last && e.finish == FinishReason::kNone;
  };
  if (!plain(event) || !plain(next) || event.choice != next.choice ||
      event.is_prompt != next.is_prompt) {
    return false;
  }
  event.text += next.text;
  event.token_ids.insert(event.token_ids.end(), next.token_ids.begin(), next.token_ids.end());
  event.logprobs.insert(event.logprobs.end(), std::make_move_iterator(next.logprobs.begin()),
                        std::make_move_iterator(next.logprobs.end()));
  return true;
}

}  // namespace mneme
