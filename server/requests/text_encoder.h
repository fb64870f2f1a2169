// Texts become tokens here: bounded in size, in how many are under way at once, and in what they
// take of memory together.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/work_meter.h"
#include "engine/engine.h"
#include "server/requests/engine_access.h"
#include "server/requests/executor.h"
#include "server/requests/lanes.h"

namespace mneme {

// The tokenizer; INVALID_ARGUMENT for `field`, which cannot be used without, if there is none.
absl::StatusOr<const Tokenizer*> NeedTokenizer(const Engine& engine, absl::string_view field);

// INVALID_ARGUMENT for a text over ServingFacts::max_text_bytes; the message names both sizes.
absl::Status CheckTextSize(absl::string_view text, absl::string_view field,
                           const ServingFacts& facts);

// As Tokenizer::Encode. A SentencePiece model takes some 300 bytes of memory for each byte of text
// meanwhile; what a long text took is given back to the system afterwards, and a long text waits
// while others leave no room (ServingFacts::encoding_room). Begins only if the result is still
// wanted, says `meter`, and ends once it is not; SentencePiece's part cannot be interrupted.
absl::StatusOr<std::vector<int32_t>> EncodeText(const Tokenizer& tokenizer, absl::string_view text,
                                                EncodeOptions options, const ServingFacts& facts,
                                                WorkMeter& meter);

// The same for two texts that belong together, as Tokenizer::EncodePair.
absl::StatusOr<Tokenizer::Pair> EncodeTextPair(const Tokenizer& tokenizer, absl::string_view text,
                                               absl::string_view pair, EncodeOptions options,
                                               const ServingFacts& facts, WorkMeter& meter);

// Bounds what is encoded at once, so that several long texts do not meet in memory. Thread-safe.
class EncodingRoom {
 public:
  explicit EncodingRoom(int64_t bytes) : bytes_(bytes), free_(bytes) {}

  // Waits, in the order of calls, until a text of `bytes` fits beside others; one that is longer
  // than all room has it to itself. An error of `meter` ends the waiting, and there is no room
  // then.
  absl::Status Enter(int64_t bytes, WorkMeter& meter) ABSL_LOCKS_EXCLUDED(mu_);
  void Leave(int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  int64_t Taken(int64_t bytes) const { return bytes < bytes_ ? bytes : bytes_; }

  const int64_t bytes_;
  absl::Mutex mu_;
  int64_t free_ ABSL_GUARDED_BY(mu_);
  int64_t next_ticket_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<int64_t> waiting_ ABSL_GUARDED_BY(mu_);  // tickets
};

// The name of whoever's turn a call's text takes: its owner, or, where everybody is anonymous, its
// host. `peer` as SocketAddress::Text writes it.
std::string TextOwner(absl::string_view owner, absl::string_view peer);

// Where to parse, render and encode a text of some size: a callback of gRPC must not take long, a
// long text must not hold up short ones, nor one caller's texts another's.
class TextExecutors {
 public:
  TextExecutors() = default;
  ~TextExecutors() { Abandon(); }

  // For what must not run on the caller's thread in any case.
  Lanes& ForBody(size_t bytes) { return bytes <= kMaxShortBytes ? short_texts_ : long_texts_; }
  // Null: at once, on the caller's thread.
  Lanes* For(size_t text_bytes) {
    return text_bytes <= kMaxInlineBytes ? nullptr : &ForBody(text_bytes);
  }

  // For good: what waits or is under way ends as soon as it looks at StillOpen.
  void Abandon() { abandoned_.store(true, std::memory_order_relaxed); }
  // UNAVAILABLE once it was abandoned.
  absl::Status StillOpen() const;

 private:
  static constexpr size_t kMaxInlineBytes = 4096;
  static constexpr size_t kMaxShortBytes = 65536;

  std::atomic<bool> abandoned_{false};
  Lanes short_texts_{2, 1024};
  Lanes long_texts_{3, 64};
};

}  // namespace mneme
