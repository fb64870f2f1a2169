// Which tokenizer a model folder has. The rules, in order:
//
//   1. tokenizer_class (tokenizer_config.json, else config.json) is "ByteTokenizer": the byte
//      tokenizer. Another tokenizer's file beside it is a contradiction and refused.
//   2. tokenizer.json: that, whatever lies beside it.
//   3. vocab.json and merges.txt, or vocab.txt, if the class is made from these.
//   4. tokenizer.model: SentencePiece.
//   5. vocab.json and merges.txt, or vocab.txt, where no class is declared: GPT-2's and BERT's.
//   6. rwkv_vocab_*.txt: RWKV's World vocabulary.
//   7. any other tokenizer file (tekken.json, spiece.model, ...): refused by name.
//   8. no tokenizer file at all and a vocab_size of 256 to 320: the byte tokenizer.
//   9. none at all: NOT_FOUND. Such a model still serves token ids.
//
// 2, 3 and 5 are what AutoTokenizer of the transformers package takes, version 5. There the class
// (huggingface/tokenizer_class.h) says how much of tokenizer.json counts: of GPT2Tokenizer,
// GPTNeoXTokenizer, Qwen2Tokenizer, Qwen3_5Tokenizer, BertTokenizer, RobertaTokenizer and
// LlamaTokenizer the normalizer, pre-tokenizer and decoder are the class's own; of all others the
// file counts as it is. In released folders the two agree. docs/tokenizers.md has the whole rule.
//
// A vocabulary larger than the model's head is taken: a text that needs a row which the model lacks
// is refused (SentencePiece: the vocabulary is). Rows that the vocabulary lacks are padding, which
// decodes to nothing and is never sampled.
//
// tokenizer_config.json may set bos_token and eos_token (spelling, as string or {"content": ...};
// null: none), which win over what the other files name, which wins over config.json's ids. With
// tokenizer.model also add_bos_token, whether prompts start with BOS (default: if there is one),
// and which spellings in a text are special tokens, where that is asked for: added_tokens_decoder
// with lstrip and rstrip, and all that it names; legacy says how text goes on behind them
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

// Facts from the model's own configuration.
struct TokenizerFacts {
  int64_t vocab_size = 0;               // rows of the embedding
  std::optional<int32_t> bos_token_id;  // generation_config.json, else config.json
  std::optional<int32_t> eos_token_id;  // the first, if there are several
  std::string tokenizer_class;          // config.json; may be empty
  std::string model_type;               // config.json; may be empty
};

// Errors name the file. NOT_FOUND: the folder has no tokenizer (rule 9), and only that.
// UNIMPLEMENTED: one that this server cannot read. INVALID_ARGUMENT: a broken or contradictory one.
// FAILED_PRECONDITION: a file that is no regular file, or a SentencePiece library that does not
// load. Oddities that do not prevent loading are in the tokenizer's notes().
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(absl::string_view folder,
                                                         const TokenizerFacts& facts);

}  // namespace mneme
