// The chat template of a checkpoint: how messages become one text.
#pragma once

#include <memory>
#include <string>

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
  // From chat_template.jinja or the field chat_template of tokenizer_config.json, in this order; of
  // several named ones, "default".
  static absl::StatusOr<Source> ReadSource(const std::string& folder);

  // NOT_FOUND if there is no source, INVALID_ARGUMENT, with file and line, for a template that uses
  // more of Jinja than is supported.
  static absl::StatusOr<std::shared_ptr<const ChatTemplate>> Load(const std::string& folder);
  // `config` as tokenizer_config.json.
  static absl::StatusOr<std::shared_ptr<const ChatTemplate>> Parse(absl::string_view source,
                                                                   const Json& config);

  // `arguments` are further variables. Errors as of jinja::Template::Render.
  absl::StatusOr<std::string> Render(const Json& messages, bool add_generation_prompt,
                                     const Json& arguments, absl::Time now, WorkMeter& meter) const;

  // Whether `word` is in the source: a template that treats a role in some way names it.
  bool Mentions(absl::string_view word) const;

 private:
  ChatTemplate(absl::string_view source, jinja::Template parsed, jinja::Map named_tokens);

  const std::string source_;
  const jinja::Template template_;
  const jinja::Map named_tokens_;  // bos_token, eos_token, ...
};

}  // namespace mneme
