// Turns ids into text as they arrive, emitting nothing that a later id could still change.
//
// The texts of all calls, joined, are what Tokenizer::Decode gives for all ids, and each of them is
// valid UTF-8 by itself. Bytes are held back while they may still become one character (at most
// three); as soon as they cannot, they become U+FFFD.
//
// The state is a few bytes, bounded and copyable: a forked session copies its decoder. One thread
// at a time; the tokenizer must outlive it.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "tokenizers/tokenizer.h"

namespace mneme {

class StreamingDecoder {
 public:
  // `options.at_sequence_start` is true for a session of which nothing but control ids was fed.
  explicit StreamingDecoder(const Tokenizer& tokenizer, DecodeOptions options = {})
      : tokenizer_(&tokenizer),
        at_start_(options.at_sequence_start),
        skip_special_tokens_(options.skip_special_tokens) {}

  // Appends to `text` what can be emitted now. `id` lies in the tokenizer's vocabulary.
  void Push(int32_t id, std::string& text);
  // Appends what was held back, as U+FFFD. Ids may follow, as after a control id.
  void Flush(std::string& text);

  std::string Push(int32_t id) {
    std::string text;
    Push(id, text);
    return text;
  }
  std::string Flush() {
    std::string text;
    Flush(text);
    return text;
  }

  // Bytes of an unfinished character, 0 to 3.
  int held_bytes() const { return held_size_; }

 private:
  // The text of the token in this place.
  absl::string_view TextOf(int32_t id);
  void PushBytes(absl::string_view bytes, std::string& text);
  void AppendFinal(absl::string_view bytes, std::string& text) const;

  const Tokenizer* tokenizer_;
  std::array<char, 4> held_ = {};  // always a proper prefix of some UTF-8 character
  uint8_t held_size_ = 0;
  uint8_t held_before_next_ = 0;  // bytes of held_token_'s text that only stand between tokens
  int32_t held_token_ = 0;
  bool at_start_;  // DecodeRules::start is still to be done
  bool skip_special_tokens_;
};

}  // namespace mneme
