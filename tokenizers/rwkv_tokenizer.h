// RWKV's World tokenizer: always the longest entry of a list of byte strings.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tokenizers/tokenizer.h"

namespace mneme {

// Id 0, which the file does not have, is the end of a text; RWKV's own code gives it no spelling,
// what Hugging Face's gives it is this.
inline constexpr absl::string_view kRwkvEndOfText = "<|rwkv_tokenizer_end_of_text|>";

// Spellings by id; empty where the file has no entry.
using RwkvVocabulary = std::vector<std::string>;

// `text` is that of a file like rwkv_vocab_v20230424.txt, at `path`: on each line an id, a Python
// literal of text or bytes, and how many bytes it has, with spaces between. INVALID_ARGUMENT names
// the file and the line, what it holds and what was expected: also for an id or an entry that
// occurs twice, and for a byte without an entry of its own.
absl::StatusOr<RwkvVocabulary> ParseRwkvVocabulary(absl::string_view text, absl::string_view path);

// `vocab_size` is that of the model's head; `vocabulary` comes with special ids and notes.
std::unique_ptr<Tokenizer> MakeRwkvTokenizer(const RwkvVocabulary& pieces, int vocab_size,
                                             Tokenizer::Vocabulary vocabulary);

}  // namespace mneme
