// The part of tokenizer_config.json that matters here, and of the files beside it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace mneme {

struct TokenizerConfig {
  // A token that is to be found in text, as the transformers package's AddedToken.
  struct AddedToken {
    int64_t id = -1;  // -1: the file does not say
    std::string content;
    bool special = false;
    bool lstrip = false;  // white space before it, and behind it, belongs to it
    bool rstrip = false;
    bool single_word = false;
    bool normalized = false;  // it is found in normalised text
  };
  // One that a key names: "eos_token". The content is empty where the file says that there is none.
  struct NamedToken {
    std::string name;
    AddedToken token;
  };
  std::vector<NamedToken> named;  // bos_token, eos_token, ... and every other "..._token"
  // added_tokens_decoder, by id; none: the file does not have the key.
  std::optional<std::vector<AddedToken>> added_tokens;
  // extra_special_tokens and additional_special_tokens, as far as these are lists.
  std::vector<AddedToken> extra_tokens;

  std::optional<bool> add_bos_token, add_eos_token;
  std::optional<bool> legacy;            // LlamaTokenizer's: see Tokenizer on special tokens
  std::optional<bool> add_prefix_space;  // what classes of tokenizers take, too
  std::optional<bool> do_lower_case, strip_accents, tokenize_chinese_chars;
  std::optional<bool> clean_up_tokenization_spaces;
  std::string tokenizer_class;  // empty if the file does not say

  // The file's word on such a token: nothing, that there is none (empty), or its spelling.
  std::optional<std::string> Spelling(absl::string_view name) const;
  // Takes the place of what was said of the same name.
  void SetNamed(NamedToken token);
};

// `json` is the text of the file at `path`. INVALID_ARGUMENT names the file, and the key and what
// it holds.
absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(absl::string_view json,
                                                     absl::string_view path);

// special_tokens_map.json: names, and extra tokens, which win over those of `config`.
absl::Status ParseSpecialTokensMap(absl::string_view json, absl::string_view path,
                                   TokenizerConfig& config);

// added_tokens.json: spellings to ids. In the order of ids.
absl::StatusOr<std::vector<TokenizerConfig::AddedToken>> ParseAddedTokensFile(
    absl::string_view json, absl::string_view path);

}  // namespace mneme
