#include "server/chat/chat_template.h"

#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
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

// A template of its own: any end of a line is "\n".
absl::StatusOr<ChatTemplate::Source> ReadTemplate(std::string path) {
  MNEME_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ChatTemplate::Source{.text = absl::StrReplaceAll(text, {{"\r\n", "\n"}, {"\r", "\n"}}),
                              .path = std::move(path)};
}

// A text, or an object with "content", as the transformers package writes both.
std::string Spelling(const Json& token) {
  if (token.is_string()) return token.get<std::string>();
  if (token.is_object() && token.contains("content") && token["content"].is_string()) {
    return token["content"].get<std::string>();
  }
  return "";
}

// The template of that name in tokenizer_config.json, or "". A single text is "default".
std::string TemplateOf(const Json& config, absl::string_view name) {
  const auto it = config.find("chat_template");
  std::string text;
  if (it == config.end()) return text;
  const auto take = [&](const Json& value) {
    if (value.is_string()) text = value.get<std::string>();
  };
  if (it->is_string() && name == "default") take(*it);
  if (it->is_object() && it->contains(std::string(name))) take((*it)[std::string(name)]);
  if (it->is_array()) {
    for (const Json& named : *it) {
      if (named.is_object() && named.value("name", "") == name)
        take(named.value("template", Json()));
    }
  }
  return text;
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

absl::StatusOr<ChatTemplate::Sources> ChatTemplate::ReadSources(const std::string& folder) {
  Sources sources;
  const std::string more = absl::StrCat(folder, "/additional_chat_templates/");
  MNEME_ASSIGN_OR_RETURN(sources.main, ReadTemplate(absl::StrCat(more, "default.jinja")));
  if (sources.main.text.empty()) {
    MNEME_ASSIGN_OR_RETURN(sources.main,
                           ReadTemplate(absl::StrCat(folder, "/chat_template.jinja")));
  }
  MNEME_ASSIGN_OR_RETURN(sources.tool_use, ReadTemplate(absl::StrCat(more, "tool_use.jinja")));
  if (!sources.main.text.empty() || !sources.tool_use.text.empty()) return sources;
  MNEME_ASSIGN_OR_RETURN(const Json config, ReadConfig(folder));
  const std::string path = absl::StrCat(ConfigPath(folder), ": chat_template");
  return Sources{.main = {.text = TemplateOf(config, "default"), .path = path},
                 .tool_use = {.text = TemplateOf(config, "tool_use"), .path = path}};
}

absl::StatusOr<std::shared_ptr<const ChatTemplate>> ChatTemplate::Load(const std::string& folder) {
  MNEME_ASSIGN_OR_RETURN(const Sources sources, ReadSources(folder));
  if (sources.main.text.empty()) {
    return absl::NotFoundError(
        "the model has no chat template (chat_template.jinja, or chat_template in "
        "tokenizer_config.json)");
  }
  MNEME_ASSIGN_OR_RETURN(const Json config, ReadConfig(folder));
  for (const Source* source : {&sources.main, &sources.tool_use}) {
    const absl::Status parsed = jinja::Template::Parse(source->text).status();
    if (parsed.ok()) continue;
    return absl::InvalidArgumentError(absl::StrCat(source->path, ": ", parsed.message()));
  }
  return Parse(sources.main.text, config, sources.tool_use.text);
}

absl::StatusOr<std::shared_ptr<const ChatTemplate>> ChatTemplate::Parse(
    absl::string_view source, const Json& config, absl::string_view tool_use) {
  MNEME_ASSIGN_OR_RETURN(jinja::Template parsed, jinja::Template::Parse(source));
  std::optional<jinja::Template> with_tools;
  if (!tool_use.empty()) {
    MNEME_ASSIGN_OR_RETURN(with_tools, jinja::Template::Parse(tool_use));
  }
  jinja::Map named;
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                           "cls_token", "mask_token"}) {
    const auto it = config.find(name);
    if (it == config.end() || it->is_null()) continue;
    named.Set(name, Spelling(*it));
  }
  return std::shared_ptr<const ChatTemplate>(
      new ChatTemplate(absl::StrCat(source, "\n", tool_use), std::move(parsed),
                       std::move(with_tools), std::move(named)));
}

ChatTemplate::ChatTemplate(std::string sources, jinja::Template parsed,
                           std::optional<jinja::Template> tool_use, jinja::Map named_tokens)
    : sources_(std::move(sources)),
      template_(std::move(parsed)),
      tool_use_(std::move(tool_use)),
      named_tokens_(std::move(named_tokens)) {}

bool ChatTemplate::Mentions(absl::string_view word) const {
  return absl::StrContains(sources_, word);
}

absl::StatusOr<std::string> ChatTemplate::Render(const Json& messages, bool add_generation_prompt,
                                                 const Json& arguments, absl::Time now,
                                                 WorkMeter& meter,
                                                 std::vector<size_t>* message_ends) const {
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
  const bool has_tools = !variables.Find("tools")->is_none();
  return (has_tools && tool_use_ ? *tool_use_ : template_)
      .Render(variables, now, meter, message_ends);
}

}  // namespace mneme
