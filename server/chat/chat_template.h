// The chat template of a checkpoint: how messages become one text.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/work_meter.h"
#include "server/jinja/template.h"
#include "server/json.h"

namespace mneme {

// Immutable: any thread may render.
class ChatTemplate {
 public:
  struct Source {
    std::string text;  // empty: there is none
    std::string path;  // where it is from, for messages
  };
  struct Sources {
    Source main;
    Source tool_use;  // for conversations with tools, instead
  };
  // As the transformers package: chat_template.jinja and additional_chat_templates/NAME.jinja,
  // where there are any; else the field chat_template of tokenizer_config.json. Of several named
  // ones "default" and "tool_use", the last of each name.
  static absl::StatusOr<Sources> ReadSources(const std::string& folder);

  // NOT_FOUND if there is no main source, INVALID_ARGUMENT, with file and line, for a template that
  // uses more of Jinja than is supported.
  static absl::StatusOr<std::shared_ptr<const ChatTemplate>> Load(const std::string& folder);
  // `config` as tokenizer_config.json. `tool_use` may be empty.
  static absl::StatusOr<std::shared_ptr<const ChatTemplate>> Parse(absl::string_view source,
                                                                   const Json& config,
                                                                   absl::string_view tool_use = "");

  // `arguments` are further variables; tools that are not null choose the template for them.
  // Errors, and `message_ends`, as of jinja::Template::Render.
  absl::StatusOr<std::string> Render(const Json& messages, bool add_generation_prompt,
                                     const Json& arguments, absl::Time now, WorkMeter& meter,
                                     std::vector<size_t>* message_ends = nullptr) const;

  // Whether `word` is in a source: a template that treats a role in some way names it.
  bool Mentions(absl::string_view word) const;

 private:
  ChatTemplate(std::string sources, jinja::Template parsed, std::optional<jinja::Template> tool_use,
               jinja::Map named_tokens);

  const std::string sources_;
  const jinja::Template template_;
  const std::optional<jinja::Template> tool_use_;
  const jinja::Map named_tokens_;  // bos_token, eos_token, ...
};

}  // namespace mneme
