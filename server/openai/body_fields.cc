#include "server/openai/body_fields.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/status_payload.h"

namespace mneme {
namespace {

struct Renamed {
  absl::string_view in_proto;
  absl::string_view in_body;
};

// Fields in sampling, stopping and response that are not here have the same name without that.
constexpr Renamed kRenamed[] = {
    {"session.name", "session_id"},
    {"session.ttl_ms", "session_ttl_ms"},
    {"session.create_if_missing", "create_session"},
    {"session.must_exist", "must_exist"},
    {"session.durability", "durability"},
    {"session.on_mismatch", "on_mismatch"},
    {"session.remember", "remember"},
    {"session.replace_lost", "replace_lost"},
    {"session.memory_seed", "memory_seed"},
    {"template_arguments", "chat_template_kwargs"},
    {"stopping.stop_strings", "stop"},
    {"stopping.include_stop_in_output", "include_stop_str_in_output"},
    {"response.prompt_logprobs", "logprobs"},  // beside echo
    {"prefix_cache.salt", "cache_salt"},
    {"prefix_cache.marks", "cache_marks"},
};

std::string BodyField(absl::string_view field, const BodyFields& fields, size_t prompt) {
  absl::string_view rest = field;
  if (field == "text" || field == "token_ids" || absl::ConsumePrefix(&rest, "token_ids.ids")) {
    const std::string place = fields.many_prompts ? absl::StrCat("[", prompt, "]") : "";
    return absl::StrCat(fields.prompt, place, rest == field ? "" : rest);
  }
  if (field == "stopping.max_tokens") return std::string(fields.max_tokens);
  if (field == "response.logprobs") return std::string(fields.logprobs);
  for (const Renamed& renamed : kRenamed) {
    if (field == renamed.in_proto) return std::string(renamed.in_body);
  }
  for (const absl::string_view message : {"sampling.", "stopping.", "response."}) {
    if (absl::ConsumePrefix(&field, message)) break;
  }
  return std::string(field);
}

}  // namespace

absl::Status WithBodyField(const absl::Status& status, const BodyFields& fields, size_t prompt) {
  const std::optional<std::string> field = FieldOf(status);
  return field.has_value() ? WithField(status, BodyField(*field, fields, prompt)) : status;
}

}  // namespace mneme
