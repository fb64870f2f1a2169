// Which tokenizer a model folder has. The rules, in order:
//
//   1. tokenizer_class (tokenizer_config.json, else config.json) is "ByteTokenizer": the byte
//      tokenizer. A tokenizer.model beside it is a contradiction and refused.
//   2. tokenizer.model: SentencePiece. A vocabulary larger than the model's is refused; rows that
//      it lacks are those of added tokens (tokenizer_config.json, added_tokens_decoder) or padding,
//      which decodes to nothing.
//   3. any other tokenizer file (tokenizer.json, vocab.json, ...): refused by name.
//   4. no tokenizer file at all and a vocab_size of 256 to 320: the byte tokenizer.
//   5. none at all: NOT_FOUND. Such a model still serves token ids.
//
// tokenizer_config.json may set bos_token and eos_token (spelling, as string or {"content": ...};
// null: none), which win over what the SentencePiece model names, which wins over config.json's
// ids; and add_bos_token, whether prompts start with BOS (default: if there is one). Which
// spellings in a text are special tokens, where that is asked for: added_tokens_decoder with lstrip
// and rstrip, these and unk_token and pad_token; legacy says how text goes on behind them
// (tokenizer.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tokenizers/tokenizer.h"

namespace mneme {

// What the model's own configuration says.
struct TokenizerFacts {
  int64_t vocab_size = 0;               // rows of the embedding
  std::optional<int32_t> bos_token_id;  // generation_config.json, else config.json
  std::optional<int32_t> eos_token_id;  // the first, if there are several
  std::string tokenizer_class;          // config.json; may be empty
};

// Errors name the file. NOT_FOUND: the folder has no tokenizer (rule 5), and only that.
// UNIMPLEMENTED: one that this server cannot read. INVALID_ARGUMENT: a broken or contradictory one.
// FAILED_PRECONDITION: a file that is no regular file, or a SentencePiece library that does not
// load. Oddities that do not prevent loading are in the tokenizer's notes().
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(absl::string_view folder,
                                                         const TokenizerFacts& facts);

}  // namespace mneme
