// Where the log of a session and a whole conversation that is sent to it part from each other.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/rewind_point.h"
#include "store/session_store.h"
#include "tokenizers/tokenizer.h"

namespace mneme {

// The longest beginning that a log and a prompt have in common, as text, with something of the
// prompt left behind it.
struct LogCut {
  // Where it ends in the log; null where the log does not lead to where they part.
  std::shared_ptr<const RewindPoint> point;
  int64_t replaced = 0;  // tokens of the prompt that are that beginning
  // The same as the session was fed it, by the tokens that its model chose; what the log does not
  // have any more is as it was sent.
  std::vector<int32_t> tokens;
  bool from_the_start = true;  // all of them are as they were fed
  int64_t snapshot = 0;        // tokens fed where the newest snapshot is that is kept; 0: none
};

// Reads the log. `tokenizer` may be null; `facts` as in RewindPoint. Errors of the store.
absl::StatusOr<LogCut> FindCut(SessionStore& store, uint64_t session,
                               std::span<const int32_t> prompt, const Tokenizer* tokenizer,
                               const FactsAfter& facts);

// All that the session was fed, as LogCut::tokens; none where its log does not go back to its
// beginning, or does not say it all by tokens. Errors of the store.
absl::StatusOr<LogCut> ReadTokens(SessionStore& store, uint64_t session);

// One that another thread looks for.
class CutSearch {
 public:
  bool done() const { return done_.load(std::memory_order_acquire); }
  // Once it is done.
  const absl::StatusOr<LogCut>& found() const { return found_; }
  // Called by that thread, once.
  void Finish(absl::StatusOr<LogCut> found) {
    found_ = std::move(found);
    done_.store(true, std::memory_order_release);
  }

 private:
  absl::StatusOr<LogCut> found_ = absl::UnknownError("not found yet");
  std::atomic<bool> done_ = false;
};

}  // namespace mneme
