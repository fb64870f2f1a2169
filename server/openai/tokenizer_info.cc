#include "server/openai/tokenizer_info.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/mapped_file.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "server/chat/chat_template.h"

namespace mneme {
namespace {

// The number that the transformers package writes for a tokenizer without a limit, as near as a
// double gets.
constexpr double kNoMaxLength = 1e30;

constexpr const char* kPathFields[] = {"vocab_file",     "merges_file",   "tokenizer_file",
                                       "spm_file",       "name_or_path",  "special_tokens_map_file",
                                       "tokenizer_path", "_name_or_path", "chat_template_file"};

absl::StatusOr<Json> ReadTokenizerConfig(const std::string& folder) {
  const absl::StatusOr<MappedFile> file =
      MappedFile::Open(absl::StrCat(folder, "/tokenizer_config.json"));
  if (absl::IsNotFound(file.status())) return Json::object();
  MNEME_RETURN_IF_ERROR(file.status());
  Json config = Json::parse(file->text(), nullptr, /*allow_exceptions=*/false);
  return config.is_object() ? config : Json::object();  // the tokenizer's loader complains
}

// {"content": "<s>", ...} as "<s>".
void FlattenToken(Json& token) {
  if (!token.is_object()) return;
  const auto content = token.find("content");
  if (content != token.end() && content->is_string()) token = Json(*content);
}

void FlattenSpecialTokens(Json& info) {
  for (auto& [name, value] : info.items()) {
    if (absl::EndsWith(name, "_token")) FlattenToken(value);
    if (name != "additional_special_tokens" || !value.is_array()) continue;
    for (Json& token : value) FlattenToken(token);
  }
}

Json SpellingOf(const Tokenizer& tokenizer, std::optional<int32_t> id) {
  return id.has_value() ? Json(SanitizeUtf8(tokenizer.entry(*id).piece)) : Json();
}

Json IdOrNull(std::optional<int32_t> id) { return id.has_value() ? Json(*id) : Json(); }

// The class that the transformers package would name.
const char* ClassOf(absl::string_view kind) {
  if (kind == "sentencepiece") return "LlamaTokenizer";
  if (kind == "bytes") return "ByteTokenizer";
  return kind == "rwkv" ? "RwkvTokenizer" : "PreTrainedTokenizerFast";
}

// As the transformers package writes them.
Json SpecialTokensById(const Tokenizer& tokenizer) {
  Json tokens = Json::object();
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const TokenKind kind = tokenizer.entry(id).kind;
    if (kind != TokenKind::kControl && kind != TokenKind::kUnknown) continue;
    tokens[absl::StrCat(id)] = {{"content", SpellingOf(tokenizer, id)},
                                {"lstrip", false},
                                {"normalized", false},
                                {"rstrip", false},
                                {"single_word", false},
                                {"special", true}};
  }
  return tokens;
}

}  // namespace

absl::StatusOr<Json> TokenizerInfo(const std::string& folder, const Tokenizer& tokenizer,
                                   std::optional<int64_t> max_length) {
  MNEME_ASSIGN_OR_RETURN(Json info, ReadTokenizerConfig(folder));
  MNEME_ASSIGN_OR_RETURN(const ChatTemplate::Sources chat_templates,
                         ChatTemplate::ReadSources(folder));
  const std::string& chat_template = chat_templates.main.text;
  for (const char* path : kPathFields) info.erase(path);
  FlattenSpecialTokens(info);
  info["bos_token"] = SpellingOf(tokenizer, tokenizer.bos_id());
  info["eos_token"] = SpellingOf(tokenizer, tokenizer.eos_id());
  info["unk_token"] = SpellingOf(tokenizer, tokenizer.unk_id());
  info["add_bos_token"] = tokenizer.adds_bos();
  info["add_eos_token"] = tokenizer.has_suffix();
  if (!chat_template.empty()) info["chat_template"] = SanitizeUtf8(chat_template);

  const auto unless_there = [&info](const char* name, Json value) {
    if (!info.contains(name)) info[name] = std::move(value);
  };
  unless_there("pad_token", nullptr);
  unless_there("chat_template", nullptr);
  unless_there("added_tokens_decoder", SpecialTokensById(tokenizer));
  unless_there("tokenizer_class", ClassOf(tokenizer.kind()));
  unless_there("model_max_length", max_length.has_value() ? Json(*max_length) : Json(kNoMaxLength));

  info["vocab_size"] = tokenizer.vocab_size();
  info["bos_token_id"] = IdOrNull(tokenizer.bos_id());
  info["eos_token_id"] = IdOrNull(tokenizer.eos_id());
  return info;
}

std::optional<int64_t> MaxModelLength(const Engine& engine) {
  std::optional<int64_t> most;
  for (const int64_t limit :
       {int64_t{engine.options().max_request_tokens}, engine.model_info().max_context}) {
    if (limit > 0) most = std::min(most.value_or(limit), limit);
  }
  return most;
}

}  // namespace mneme
