// "vocab", which all kinds of models have.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tokenizers/huggingface/pre_tokenizer.h"
#include "tokenizers/huggingface/token_table.h"
#include "tokenizers/huggingface/tokenizer_json.h"

namespace mneme {

// Ids have to be below: a list of all tokens by id is made, whatever holes there are.
inline constexpr int32_t kMaxTokenIds = 1 << 22;

struct Vocabulary {
  std::vector<std::string> by_id;  // spellings as the file has them; empty where there is none
  TokenTable by_spelling;
};

// INVALID_ARGUMENT, naming `path` and the token: no tokens at all, an id twice or beyond the limit,
// or a spelling twice. Of a list with scores, where the index is the id, the last of two that are
// spelled the same is found by spelling, as in the tokenizers package.
absl::StatusOr<Vocabulary> MakeVocabulary(const TokenizerJson::Model& model,
                                          absl::string_view path);

// The piece that is spelled `spelling`: the bytes that it writes in kBytes, itself in kText. None:
// no piece is spelled so.
std::optional<std::string> PieceOf(absl::string_view spelling, PieceAlphabet alphabet);

// The tokens for single bytes, "<0x00>" to "<0xFF>"; -1: none.
std::array<int32_t, 256> ByteTokens(const TokenTable& by_spelling);

}  // namespace mneme
