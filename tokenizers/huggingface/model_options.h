// Options that the kinds of models read, and errors that they give, alike.
#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/config_reader.h"
#include "base/json_text.h"
#include "base/utf8.h"
#include "tokenizers/huggingface/token_table.h"
#include "tokenizers/huggingface/tokenizer_json.h"

namespace mneme {

// Options that may be null or missing.
inline std::optional<std::string> NullableString(ConfigReader& reader, const char* key) {
  if (reader.IsNull(key)) return std::nullopt;
  return reader.String(key, "");
}
inline bool BoolOrFalse(ConfigReader& reader, const char* key) {
  return !reader.IsNull(key) && reader.Bool(key, false);
}

// Options that may not.
inline std::string RequiredString(ConfigReader& reader, const char* key) {
  if (!reader.Has(key)) reader.Invalid(key, nullptr, "a string");
  return reader.String(key, "");
}

// The vocabulary is one of ids, as every type but Unigram has it.
inline absl::Status CheckHasIds(const TokenizerJson::Model& model, absl::string_view path) {
  if (!model.has_scores) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": key \"vocab\" is a list, expected an object from tokens to ids"));
}

// None: none is named, or it is no token.
inline std::optional<int32_t> IdOf(const TokenTable& by_spelling,
                                   const std::optional<std::string>& token) {
  const int32_t id = token.has_value() ? by_spelling.Find(*token) : -1;
  return id < 0 ? std::nullopt : std::optional(id);
}

// Bytes of the UTF-8 character that `text`, which is not empty, begins with.
inline size_t CharacterBytes(absl::string_view text) {
  const auto lead = static_cast<uint8_t>(text.front());
  const size_t bytes = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  return std::min(bytes, text.size());
}

// Why `piece` cannot be encoded: `unk_token` is none of the vocabulary.
inline absl::Status NoUnknownToken(absl::string_view piece, absl::string_view unk_token) {
  constexpr size_t kShownBytes = 40;
  return absl::InvalidArgumentError(absl::StrCat(
      "the vocabulary cannot spell ", Shown(Shortened(piece, kShownBytes)),
      ", and has no unknown token",
      unk_token.empty() ? "" : absl::StrCat(": ", Shown(std::string(unk_token)), " is not in it")));
}

}  // namespace mneme
