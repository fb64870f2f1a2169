// The chat template of a checkpoint: how messages become one text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/jinja/template.h"
#include "server/openai/json_body.h"

namespace mneme {

// Immutable: any thread may render.
class ChatTemplate {
 public:
  // From chat_template.jinja or the field chat_template of tokenizer_config.json, in this order; of
  // several named ones, "default". NOT_FOUND if there is neither, INVALID_ARGUMENT, with file and
  // line, for a template that uses more of Jinja than is supported.
  static absl::StatusOr<std::shared_ptr<const ChatTemplate>> Load(const std::string& folder);
  // `config` as tokenizer_config.json.
  static absl::StatusOr<std::shared_ptr<const ChatTemplate>> Parse(absl::string_view source,
                                                                   const Json& config);

  // `with_bos` false: the template's bos_token is empty. `arguments` are further variables.
  absl::StatusOr<std::string> Render(const Json& messages, bool add_generation_prompt,
                                     bool with_bos, const Json& arguments, absl::Time now) const;

  // Spellings that tokenizer_config.json calls tokens, beside those of the vocabulary itself.
  const std::vector<std::string>& added_tokens() const { return added_tokens_; }

 private:
  ChatTemplate(jinja::Template parsed, const Json& config);

  jinja::Template template_;
  jinja::Map special_tokens_;  // bos_token, eos_token, ...
  std::vector<std::string> added_tokens_;
};

}  // namespace mneme
