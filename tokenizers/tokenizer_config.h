// The part of tokenizer_config.json that matters here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace mneme {

struct TokenizerConfig {
  // A special token's spelling. Absent: the file does not mention it; empty: it says there is none.
  std::optional<std::string> bos_token, eos_token, unk_token, pad_token;
  std::optional<bool> add_bos_token, add_eos_token;
  std::optional<bool> legacy;   // LlamaTokenizer's: see Tokenizer on special tokens
  std::string tokenizer_class;  // empty if the file does not say

  struct AddedToken {
    int64_t id = 0;
    std::string content;
    bool special = false;
    bool lstrip = false;  // white space before it, and behind it, belongs to it
    bool rstrip = false;
  };
  std::vector<AddedToken> added_tokens;
};

// `json` is the text of the file at `path`. INVALID_ARGUMENT names the file, and the key and what
// it holds.
absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(absl::string_view json,
                                                     absl::string_view path);

}  // namespace mneme
