#include "tokenizers/tokenizer_config.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/config_reader.h"
#include "base/json_text.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

using Json = nlohmann::json;

// A string, or an object with the string "content", as the transformers package writes both.
std::string Spelling(ConfigReader& reader, const char* key, const Json& value) {
  const Json& text = value.is_object() && value.contains("content") ? value["content"] : value;
  if (text.is_string()) return text.get<std::string>();
  reader.Invalid(key, value, "a string, an object with \"content\", or null");
  return "";
}

std::optional<std::string> SpecialToken(ConfigReader& reader, const char* key) {
  const Json* value = reader.Find(key);
  if (value == nullptr) return std::nullopt;
  return value->is_null() ? "" : Spelling(reader, key, *value);
}

std::optional<bool> NullableBool(ConfigReader& reader, const char* key) {
  if (reader.IsNull(key)) return std::nullopt;
  return reader.Bool(key, false);
}

absl::StatusOr<std::vector<TokenizerConfig::AddedToken>> AddedTokens(const Json& tokens,
                                                                     const std::string& path) {
  std::vector<TokenizerConfig::AddedToken> added;
  ConfigReader reader(tokens, path);
  for (const auto& [id, value] : tokens.items()) {
    TokenizerConfig::AddedToken token;
    if (!absl::SimpleAtoi(id, &token.id) || token.id < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": has the key ", Shown(id), ", expected token ids"));
    }
    token.content = Spelling(reader, id.c_str(), value);
    if (value.is_object()) {
      ConfigReader flags(value, absl::StrCat(path, ".", id));
      token.special = NullableBool(flags, "special").value_or(false);
      token.lstrip = NullableBool(flags, "lstrip").value_or(false);
      token.rstrip = NullableBool(flags, "rstrip").value_or(false);
      MNEME_RETURN_IF_ERROR(flags.status());
    }
    added.push_back(std::move(token));
  }
  MNEME_RETURN_IF_ERROR(reader.status());
  return added;
}

}  // namespace

absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(absl::string_view json,
                                                     absl::string_view path) {
  constexpr char kAddedTokens[] = "added_tokens_decoder";
  MNEME_ASSIGN_OR_RETURN(const Json config, ParseJsonObject(json, path));
  ConfigReader reader(config, path);
  TokenizerConfig parsed = {.bos_token = SpecialToken(reader, "bos_token"),
                            .eos_token = SpecialToken(reader, "eos_token"),
                            .unk_token = SpecialToken(reader, "unk_token"),
                            .pad_token = SpecialToken(reader, "pad_token"),
                            .add_bos_token = NullableBool(reader, "add_bos_token"),
                            .add_eos_token = NullableBool(reader, "add_eos_token"),
                            .legacy = NullableBool(reader, "legacy")};
  if (!reader.IsNull("tokenizer_class")) {
    parsed.tokenizer_class = reader.String("tokenizer_class", "");
  }
  if (!reader.IsNull(kAddedTokens)) {
    const Json& tokens = *reader.Find(kAddedTokens);
    if (tokens.is_object()) {
      MNEME_ASSIGN_OR_RETURN(parsed.added_tokens,
                             AddedTokens(tokens, absl::StrCat(path, ": ", kAddedTokens)));
    } else {
      reader.Invalid(kAddedTokens, tokens, "an object from ids to tokens");
    }
  }
  MNEME_RETURN_IF_ERROR(reader.status());
  return parsed;
}

}  // namespace mneme
