// Which tokens are cut out of texts by their spelling: several files of a folder have a say.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tokenizers/huggingface/tokenizer.h"
#include "tokenizers/tokenizer_config.h"

namespace mneme {

struct AddedTokenSources {
  // "added_tokens" of tokenizer.json, in the file's order; empty without one.
  std::vector<TokenizerConfig::AddedToken> file;
  // Whether the file's count beside those of `config`, or only where that has none.
  bool file_is_whole = true;
  // tokenizer_config.json's, with names from special_tokens_map.json where that counts.
  const TokenizerConfig& config;
  // added_tokens.json's; only looked at where `config` has no added_tokens.
  std::vector<TokenizerConfig::AddedToken> legacy;
};

// The "added_tokens" of tokenizer.json; null: none. `path` names the list in errors.
// INVALID_ARGUMENT: not a list of tokens, or two tokens with the same id.
absl::StatusOr<std::vector<TokenizerConfig::AddedToken>> ParseAddedTokens(
    const nlohmann::json& list, absl::string_view path);

// As transformers 5 does it: first those of the file, if it counts; then those of the config, else
// the older file's; then what the config names (bos_token, ...) and what it has extra. What comes
// later changes the flags of a token, but those named or extra become special only, and none ceases
// to be special. A spelling that the model's vocabulary has keeps its id there; others get the next
// one, whatever id was written: `notes` says where the two differ.
// `model_count`: entries of the model's vocabulary, an empty one among them.
std::vector<Pipeline::Added> ResolveAddedTokens(const AddedTokenSources& sources,
                                                const std::vector<std::string>& model_tokens,
                                                int32_t model_count,
                                                std::vector<std::string>& notes);

}  // namespace mneme
