// Classes of tokenizers that the transformers package builds itself. Of a tokenizer.json they take
// the vocabulary and the added tokens alone; folders of older files have nothing else.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tokenizers/huggingface/tokenizer_json.h"
#include "tokenizers/post_processor.h"
#include "tokenizers/special_ids.h"
#include "tokenizers/tokenizer_config.h"

namespace mneme {

enum class TokenizerClass : uint8_t {
  kFile,  // the file says everything
  kBert,
  kGpt2,
  kGptNeoX,
  kLlama,
  kQwen2,
  kQwen35,
  kRoberta,
};

// `declared` is tokenizer_config.json's tokenizer_class, else config.json's, or empty; `model_type`
// is config.json's. As AutoTokenizer of transformers 5: some model types have a class of their own
// whatever is declared, others have one where none is, and unknown names mean the file.
TokenizerClass ChooseTokenizerClass(absl::string_view declared, absl::string_view model_type);

// "GPT2Tokenizer".
absl::string_view TokenizerClassName(TokenizerClass tokenizer_class);

// The "model" that the class has: "BPE", "WordPiece". Empty: any.
absl::string_view ModelTypeOf(TokenizerClass tokenizer_class);

// Whether it is made from vocab.json and merges.txt, or from vocab.txt, where that is all there is.
bool ReadsVocabAndMerges(TokenizerClass tokenizer_class);
bool ReadsVocabText(TokenizerClass tokenizer_class);

// Puts the class's own normalizer, pre-tokenizer, decoder and options of the model in place of the
// file's.
void ApplyTokenizerClass(TokenizerClass tokenizer_class, const TokenizerConfig& config,
                         TokenizerJson& file);

// Gives `config` the names of tokens that the class has where the file does not say (eos_token).
void AddClassTokens(TokenizerClass tokenizer_class, TokenizerConfig& config);

// The tokens that the class puts around texts; none: those that the file says. `find` gives the id
// of a spelling. INVALID_ARGUMENT: it needs a token that is not in the vocabulary.
absl::StatusOr<std::optional<PostProcessor>> ClassPostProcessor(TokenizerClass tokenizer_class,
                                                                const TokenizerConfig& config,
                                                                bool file_has_one, FindToken find);

}  // namespace mneme
