// Ids 0 to 255 are the bytes of UTF-8. Ids above are control tokens without a spelling of their
// own.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tokenizers/tokenizer.h"

namespace mneme {

inline constexpr int kByteTokenizerMinVocabSize = 256;
inline constexpr int kByteTokenizerMaxVocabSize = 320;

inline bool FitsByteTokenizer(int64_t vocab_size) {
  return vocab_size >= kByteTokenizerMinVocabSize && vocab_size <= kByteTokenizerMaxVocabSize;
}

// INVALID_ARGUMENT if the size does not fit. A BOS or EOS below 256 is a byte, so the tokenizer
// then has none, and says so in its notes.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeByteTokenizer(int64_t vocab_size,
                                                             std::optional<int32_t> bos_id,
                                                             std::optional<int32_t> eos_id,
                                                             std::vector<std::string> notes = {});

}  // namespace mneme
