#include "tokenizers/tokenizer_config.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/config_reader.h"
#include "base/json_text.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

using Json = nlohmann::json;
using Spec = TokenizerConfig::AddedToken;

constexpr absl::string_view kUsualNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                             "pad_token", "cls_token", "mask_token"};

std::optional<bool> NullableBool(ConfigReader& reader, const char* key) {
  if (reader.IsNull(key)) return std::nullopt;
  return reader.Bool(key, false);
}

// A string, or an object with the string "content" and flags, as the transformers package writes
// both. The content is empty for null.
absl::StatusOr<Spec> Token(ConfigReader& reader, const std::string& key, const Json& value,
                           const std::string& path) {
  Spec token;
  if (value.is_null()) return token;
  const Json& text = value.is_object() && value.contains("content") ? value["content"] : value;
  if (!text.is_string()) {
    reader.Invalid(key.c_str(), value, "a string, an object with \"content\", or null");
    return reader.status();
  }
  token.content = text.get<std::string>();
  if (!value.is_object()) return token;
  ConfigReader flags(value, absl::StrCat(path, ": ", key));
  token.special = NullableBool(flags, "special").value_or(false);
  token.lstrip = NullableBool(flags, "lstrip").value_or(false);
  token.rstrip = NullableBool(flags, "rstrip").value_or(false);
  token.single_word = NullableBool(flags, "single_word").value_or(false);
  token.normalized = NullableBool(flags, "normalized").value_or(false);
  MNEME_RETURN_IF_ERROR(flags.status());
  return token;
}

absl::StatusOr<std::vector<Spec>> AddedTokensDecoder(const Json& tokens, const std::string& path) {
  std::vector<Spec> added;
  ConfigReader reader(tokens, path);
  for (const auto& [id, value] : tokens.items()) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(id, &number) || number < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": has the key ", Shown(id), ", expected token ids"));
    }
    MNEME_ASSIGN_OR_RETURN(Spec token, Token(reader, id, value, path));
    token.id = number;
    added.push_back(std::move(token));
  }
  std::stable_sort(added.begin(), added.end(),
                   [](const Spec& a, const Spec& b) { return a.id < b.id; });
  return added;
}

// Names and extra tokens of an object that has both among other things.
absl::Status ReadNamedTokens(const Json& object, const std::string& path, TokenizerConfig& config) {
  ConfigReader reader(object, path);
  const auto read_names = [&](const Json& names, ConfigReader& names_reader) -> absl::Status {
    for (const auto& [key, value] : names.items()) {
      if (!absl::EndsWith(key, "_token") || absl::StartsWith(key, "add_")) continue;
      const bool is_usual = absl::c_linear_search(kUsualNames, key);
      if (!is_usual && !value.is_string() && !value.is_object()) continue;
      MNEME_ASSIGN_OR_RETURN(Spec token, Token(names_reader, key, value, path));
      token.special = true;
      config.SetNamed({key, std::move(token)});
    }
    return names_reader.status();
  };
  MNEME_RETURN_IF_ERROR(read_names(object, reader));
  for (const char* key : {"extra_special_tokens", "additional_special_tokens"}) {
    const Json* list = reader.Find(key);
    if (list == nullptr || list->is_null()) continue;
    if (list->is_object()) {  // names that the transformers package does not know
      ConfigReader names(*list, absl::StrCat(path, ": ", key));
      MNEME_RETURN_IF_ERROR(read_names(*list, names));
      continue;
    }
    if (!list->is_array()) {
      reader.Invalid(key, *list, "a list of tokens");
      return reader.status();
    }
    for (const Json& value : *list) {
      MNEME_ASSIGN_OR_RETURN(Spec token, Token(reader, key, value, path));
      token.special = true;
      if (!token.content.empty()) config.extra_tokens.push_back(std::move(token));
    }
  }
  return reader.status();
}

}  // namespace

std::optional<std::string> TokenizerConfig::Spelling(absl::string_view name) const {
  for (const NamedToken& token : named) {
    if (token.name == name) return token.token.content;
  }
  return std::nullopt;
}

void TokenizerConfig::SetNamed(NamedToken token) {
  for (NamedToken& known : named) {
    if (known.name != token.name) continue;
    known = std::move(token);
    return;
  }
  named.push_back(std::move(token));
}

absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(absl::string_view json,
                                                     absl::string_view path) {
  constexpr char kAddedTokens[] = "added_tokens_decoder";
  MNEME_ASSIGN_OR_RETURN(const Json config, ParseJsonObject(json, path));
  ConfigReader reader(config, path);
  TokenizerConfig parsed;
  MNEME_RETURN_IF_ERROR(ReadNamedTokens(config, std::string(path), parsed));
  parsed.add_bos_token = NullableBool(reader, "add_bos_token");
  parsed.add_eos_token = NullableBool(reader, "add_eos_token");
  parsed.legacy = NullableBool(reader, "legacy");
  parsed.add_prefix_space = NullableBool(reader, "add_prefix_space");
  parsed.do_lower_case = NullableBool(reader, "do_lower_case");
  parsed.strip_accents = NullableBool(reader, "strip_accents");
  parsed.tokenize_chinese_chars = NullableBool(reader, "tokenize_chinese_chars");
  parsed.clean_up_tokenization_spaces = NullableBool(reader, "clean_up_tokenization_spaces");
  if (!reader.IsNull("tokenizer_class")) {
    parsed.tokenizer_class = reader.String("tokenizer_class", "");
  }
  if (!reader.IsNull(kAddedTokens)) {
    const Json& tokens = *reader.Find(kAddedTokens);
    if (tokens.is_object()) {
      MNEME_ASSIGN_OR_RETURN(parsed.added_tokens,
                             AddedTokensDecoder(tokens, absl::StrCat(path, ": ", kAddedTokens)));
    } else {
      reader.Invalid(kAddedTokens, tokens, "an object from ids to tokens");
    }
  }
  MNEME_RETURN_IF_ERROR(reader.status());
  return parsed;
}

absl::Status ParseSpecialTokensMap(absl::string_view json, absl::string_view path,
                                   TokenizerConfig& config) {
  MNEME_ASSIGN_OR_RETURN(const Json map, ParseJsonObject(json, path));
  if (map.contains("additional_special_tokens")) config.extra_tokens.clear();
  return ReadNamedTokens(map, std::string(path), config);
}

absl::StatusOr<std::vector<Spec>> ParseAddedTokensFile(absl::string_view json,
                                                       absl::string_view path) {
  MNEME_ASSIGN_OR_RETURN(const Json map, ParseJsonObject(json, path));
  std::vector<Spec> tokens;
  for (const auto& [content, id] : map.items()) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": ", Shown(content), " is ", Shown(id), ", expected a token's id"));
    }
    tokens.push_back({.id = id.get<int64_t>(), .content = content, .normalized = true});
  }
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const Spec& a, const Spec& b) { return a.id < b.id; });
  return tokens;
}

}  // namespace mneme
