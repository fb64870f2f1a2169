#include "server/chat/chat_template.h"

#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

constexpr size_t kMaxFileBytes = size_t{64} << 20;

// Empty if there is no such file.
absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::string();
  std::ostringstream text;
  text << file.rdbuf();
  if (text.str().size() > kMaxFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is too large"));
  }
  return text.str();
}

// A text, or an object with "content", as the transformers package writes both.
std::string Spelling(const Json& token) {
  if (token.is_string()) return token.get<std::string>();
  if (token.is_object() && token.contains("content") && token["content"].is_string()) {
    return token["content"].get<std::string>();
  }
  return "";
}

// The template of tokenizer_config.json, or "".
std::string TemplateOf(const Json& config) {
  const auto it = config.find("chat_template");
  if (it == config.end()) return "";
  if (it->is_string()) return it->get<std::string>();
  if (!it->is_array()) return "";
  for (const Json& named : *it) {
    if (named.is_object() && named.value("name", "") == "default") {
      return named.value("template", "");
    }
  }
  return "";
}

std::string ConfigPath(const std::string& folder) {
  return absl::StrCat(folder, "/tokenizer_config.json");
}

// An empty object for a file that is none: the tokenizer's loader complains.
absl::StatusOr<Json> ReadConfig(const std::string& folder) {
  MNEME_ASSIGN_OR_RETURN(const std::string text, ReadFile(ConfigPath(folder)));
  Json config = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return config.is_object() ? config : Json::object();
}

}  // namespace

absl::StatusOr<ChatTemplate::Source> ChatTemplate::ReadSource(const std::string& folder) {
  Source source{.path = absl::StrCat(folder, "/chat_template.jinja")};
  MNEME_ASSIGN_OR_RETURN(source.text, ReadFile(source.path));
  if (!source.text.empty()) return source;
  MNEME_ASSIGN_OR_RETURN(const Json config, ReadConfig(folder));
  return Source{.text = TemplateOf(config),
                .path = absl::StrCat(ConfigPath(folder), ": chat_template")};
}

absl::StatusOr<std::shared_ptr<const ChatTemplate>> ChatTemplate::Load(const std::string& folder) {
  MNEME_ASSIGN_OR_RETURN(const Source source, ReadSource(folder));
  if (source.text.empty()) {
    return absl::NotFoundError(
        "the model has no chat template (chat_template.jinja, or chat_template in "
        "tokenizer_config.json)");
  }
  MNEME_ASSIGN_OR_RETURN(const Json config, ReadConfig(folder));
  auto parsed = Parse(source.text, config);
  if (parsed.ok()) return parsed;
  return absl::InvalidArgumentError(absl::StrCat(source.path, ": ", parsed.status().message()));
}

absl::StatusOr<std::shared_ptr<const ChatTemplate>> ChatTemplate::Parse(absl::string_view source,
                                                                        const Json& config) {
  MNEME_ASSIGN_OR_RETURN(jinja::Template parsed, jinja::Template::Parse(source));
  jinja::Map named;
  for (const char* name : {"bos_token", "eos_token", "unk_token", "pad_token"}) {
    const auto it = config.find(name);
    if (it == config.end() || it->is_null()) continue;
    named.Set(name, Spelling(*it));
  }
  return std::shared_ptr<const ChatTemplate>(
      new ChatTemplate(source, std::move(parsed), std::move(named)));
}

ChatTemplate::ChatTemplate(absl::string_view source, jinja::Template parsed,
                           jinja::Map named_tokens)
    : source_(source), template_(std::move(parsed)), named_tokens_(std::move(named_tokens)) {}

bool ChatTemplate::Mentions(absl::string_view word) const {
  return absl::StrContains(source_, word);
}

absl::StatusOr<std::string> ChatTemplate::Render(const Json& messages, bool add_generation_prompt,
                                                 const Json& arguments, absl::Time now,
                                                 WorkMeter& meter) const {
  jinja::Map variables = named_tokens_;
  variables.Set("tools", jinja::None{});
  variables.Set("documents", jinja::None{});
  for (const auto& [name, value] : arguments.get_ref<const Json::object_t&>()) {
    MNEME_ASSIGN_OR_RETURN(jinja::Value argument, jinja::Value::FromJson(value, meter));
    variables.Set(name, std::move(argument));
  }
  MNEME_ASSIGN_OR_RETURN(jinja::Value list, jinja::Value::FromJson(messages, meter));
  variables.Set("messages", std::move(list));
  variables.Set("add_generation_prompt", add_generation_prompt);
  return template_.Render(variables, now, meter);
}

}  // namespace mneme
