// Events of requests, on their way to those who read them.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "engine/generation.h"
#include "engine/idempotency.h"
#include "engine/stream_notifier.h"
#include "engine/token_stream.h"

namespace mneme {

// Events are in their stream at once, and readers are told of them together. Last events wait until
// SendLast(): whoever has one finds its request ended in everything that can be asked for.
//
// Owned and called by one thread, the loop's. `notifier` may be null: then readers' callbacks run
// on that thread. What the constructor takes must outlive it.
class Outbox {
 public:
  Outbox(IdempotencyTable& keys, StreamNotifier* notifier) : keys_(keys), notifier_(notifier) {}

  // An event that is not the last one. It joins the record of the request's idempotency key.
  void Send(Generation& g, TokenEvent event) {
    if (g.record != nullptr) keys_.Append(*g.record, event);
    Push(g.stream, std::move(event));
  }
  // The last event, for SendLast(). Who closes the request's record adds it there.
  void KeepLast(const Generation& g, TokenEvent last) {
    last_.push_back({g.stream, std::move(last)});
  }
  int kept() const { return static_cast<int>(last_.size()); }
  void SendLast() {
    for (auto& [stream, event] : last_) Push(stream, std::move(event));
    last_.clear();
  }
  // Tells the readers of all streams that have something new.
  void Notify() {
    if (notifier_ != nullptr) {
      notifier_->Notify(to_notify_);
    } else {
      for (const auto& stream : std::exchange(to_notify_, {})) stream->NotifyReader();
    }
  }

 private:
  struct Last {
    std::shared_ptr<TokenStream> stream;
    TokenEvent event;
  };
  void Push(const std::shared_ptr<TokenStream>& stream, TokenEvent&& event) {
    if (stream->Push(std::move(event))) to_notify_.push_back(stream);
  }

  IdempotencyTable& keys_;
  StreamNotifier* const notifier_;
  std::vector<Last> last_;
  std::vector<std::shared_ptr<TokenStream>> to_notify_;
};

}  // namespace mneme
