#include "models/tokenizer_config.h"

#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

using Json = nlohmann::json;

absl::Status WrongType(absl::string_view key, const Json& value, absl::string_view expected) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 100) {
    text = absl::StrCat(text.substr(0, 100), "...");
  }
  return absl::InvalidArgumentError(absl::StrCat(key, " is ", text, ", expected ", expected));
}

// A string, or an object with the string "content", as the transformers package writes both.
absl::StatusOr<std::string> TokenSpelling(absl::string_view key, const Json& value) {
  const Json* text = &value;
  if (value.is_object() && value.contains("content")) {
    text = &value["content"];
  }
  if (!text->is_string()) {
    return WrongType(key, value, "a string, an object with \"content\", or null");
  }
  return text->get<std::string>();
}

absl::Status ReadToken(const Json& config, const char* key, std::optional<std::string>& token) {
  const auto it = config.find(key);
  if (it == config.end()) {
    return absl::OkStatus();
  }
  token = std::string();
  if (it->is_null()) {
    return absl::OkStatus();
  }
  MNEME_ASSIGN_OR_RETURN(token, TokenSpelling(key, *it));
  return absl::OkStatus();
}

absl::Status ReadBool(const Json& config, const char* key, std::optional<bool>& flag) {
  const auto it = config.find(key);
  if (it == config.end() || it->is_null()) {
    return absl::OkStatus();
  }
  if (!it->is_boolean()) {
    return WrongType(key, *it, "true or false");
  }
  flag = it->get<bool>();
  return absl::OkStatus();
}

absl::Status ReadAddedTokens(const Json& config,
                             std::vector<TokenizerConfig::AddedToken>& added_tokens) {
  constexpr char kKey[] = "added_tokens_decoder";
  const auto it = config.find(kKey);
  if (it == config.end() || it->is_null()) {
    return absl::OkStatus();
  }
  if (!it->is_object()) {
    return WrongType(kKey, *it, "an object from ids to tokens");
  }
  for (const auto& [key, value] : it->items()) {
    TokenizerConfig::AddedToken token;
    if (!absl::SimpleAtoi(key, &token.id) || token.id < 0) {
      return WrongType(kKey, key, "a token id as key");
    }
    MNEME_ASSIGN_OR_RETURN(token.content, TokenSpelling(absl::StrCat(kKey, ".", key), value));
    std::optional<bool> special;
    if (value.is_object()) {
      MNEME_RETURN_IF_ERROR(ReadBool(value, "special", special));
    }
    token.special = special.value_or(false);
    added_tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(absl::string_view json) {
  const Json config = Json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false);
  if (config.is_discarded()) {
    return absl::InvalidArgumentError("not valid JSON");
  }
  if (!config.is_object()) {
    return WrongType("the file", config, "a JSON object");
  }
  TokenizerConfig parsed;
  MNEME_RETURN_IF_ERROR(ReadToken(config, "bos_token", parsed.bos_token));
  MNEME_RETURN_IF_ERROR(ReadToken(config, "eos_token", parsed.eos_token));
  MNEME_RETURN_IF_ERROR(ReadBool(config, "add_bos_token", parsed.add_bos_token));
  MNEME_RETURN_IF_ERROR(ReadBool(config, "add_eos_token", parsed.add_eos_token));
  MNEME_RETURN_IF_ERROR(ReadAddedTokens(config, parsed.added_tokens));
  if (const auto it = config.find("tokenizer_class"); it != config.end() && !it->is_null()) {
    if (!it->is_string()) {
      return WrongType("tokenizer_class", *it, "a string");
    }
    parsed.tokenizer_class = it->get<std::string>();
  }
  return parsed;
}

}  // namespace mneme
