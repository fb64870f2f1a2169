// Texts become tokens here: bounded in size and in how many are under way at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/engine.h"
#include "server/engine_access.h"
#include "server/executor.h"

namespace mneme {

// The tokenizer; INVALID_ARGUMENT for `field`, which cannot be used without, if there is none.
absl::StatusOr<const Tokenizer*> NeedTokenizer(const Engine& engine, absl::string_view field);

// INVALID_ARGUMENT for a text over ServingFacts::max_text_bytes; the message names both sizes.
absl::Status CheckTextSize(absl::string_view text, absl::string_view field,
                           const ServingFacts& facts);

// As Tokenizer::Encode. A SentencePiece model takes some 300 bytes of memory for each byte of text
// meanwhile; what a long text took is given back to the system afterwards.
absl::StatusOr<std::vector<int32_t>> EncodeText(const Tokenizer& tokenizer, absl::string_view text,
                                                EncodeOptions options);

// Where to encode a text of some size: a callback of gRPC must not take long, and a long text must
// neither hold up short ones nor meet another long one in memory.
class TextExecutors {
 public:
  // For what must not run on the caller's thread in any case.
  Executor& ForBody(size_t bytes) { return bytes <= kMaxShortBytes ? short_texts_ : long_texts_; }
  // Null: at once, on the caller's thread.
  Executor* For(size_t text_bytes) {
    if (text_bytes <= kMaxInlineBytes) return nullptr;
    return text_bytes <= kMaxShortBytes ? &short_texts_ : &long_texts_;
  }

 private:
  static constexpr size_t kMaxInlineBytes = 4096;
  static constexpr size_t kMaxShortBytes = 65536;

  Executor short_texts_{1, 1024};
  Executor long_texts_{1, 64};
};

}  // namespace mneme
