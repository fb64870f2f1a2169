// Tokenizers of Hugging Face's formats, from the files of a folder.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tokenizers/tokenizer.h"
#include "tokenizers/tokenizer_config.h"
#include "tokenizers/tokenizer_loader.h"

namespace mneme {

// Which files a tokenizer is made from.
enum class TokenizerFiles {
  kTokenizerJson,   // tokenizer.json
  kVocabAndMerges,  // vocab.json and merges.txt
  kVocabText,       // vocab.txt
};

// `config` is what tokenizer_config.json says, if there is one. Also read where it has no
// added_tokens_decoder: special_tokens_map.json and added_tokens.json. Errors as of LoadTokenizer.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadHuggingFaceTokenizer(absl::string_view folder,
                                                                    TokenizerFiles files,
                                                                    TokenizerConfig config,
                                                                    const TokenizerFacts& facts);

}  // namespace mneme
