#include "server/openai/openai_request.h"

#include <cstdint>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/status_payload.h"

namespace mneme {
namespace {

// Of one request; more would rather be several requests.
constexpr size_t kMaxPrompts = 1024;
// What OpenAI generates for a completion that does not say.
constexpr int kCompletionMaxTokens = 16;

bool IsTokenIds(const Json& value) {
  if (!value.is_array() || value.empty()) return false;
  for (const Json& id : value) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX) return false;
  }
  return true;
}

void ReadSampling(JsonFields& fields, v1::SamplingOptions& out) {
  double number = 0;
  int32_t whole = 0;
  int64_t wide = 0;
  if (fields.Read("temperature", number)) out.set_temperature(static_cast<float>(number));
  if (fields.Read("top_p", number)) out.set_top_p(static_cast<float>(number));
  if (fields.Read("min_p", number)) out.set_min_p(static_cast<float>(number));
  // Other servers' "off" is -1.
  if (fields.Read("top_k", whole)) out.set_top_k(whole == -1 ? 0 : whole);
  if (fields.Read("repetition_penalty", number)) {
    out.set_repetition_penalty(static_cast<float>(number));
  }
  if (fields.Read("presence_penalty", number)) {
    out.set_presence_penalty(static_cast<float>(number));
  }
  if (fields.Read("frequency_penalty", number)) {
    out.set_frequency_penalty(static_cast<float>(number));
  }
  if (fields.Read("seed", wide)) out.set_seed(static_cast<uint64_t>(wide));
  if (const Json* bias = fields.Find("logit_bias"); bias != nullptr) {
    if (!bias->is_object()) {
      return fields.Fail("logit_bias", "an object from token ids to numbers", *bias);
    }
    for (const auto& [key, value] : bias->items()) {
      int32_t id = 0;
      if (!absl::SimpleAtoi(key, &id) || !value.is_number()) {
        return fields.Fail("logit_bias", "an object from token ids to numbers", *bias);
      }
      (*out.mutable_logit_bias())[id] = value.get<float>();
    }
  }
}

void ReadStop(JsonFields& fields, OpenAiKind kind, v1::StoppingOptions& out) {
  int32_t tokens = 0;
  bool flag = false;
  const bool has_new = fields.Read("max_completion_tokens", tokens);
  if (has_new && kind == OpenAiKind::kCompletion) {
    return fields.Fail("max_completion_tokens", "max_tokens in its place", tokens);
  }
  if (has_new || fields.Read("max_tokens", tokens)) {
    if (tokens < 0)
      return fields.Fail(has_new ? "max_completion_tokens" : "max_tokens", "at least 0", tokens);
    out.set_max_tokens(tokens);
  } else if (kind == OpenAiKind::kCompletion) {
    out.set_max_tokens(kCompletionMaxTokens);
  }
  fields.Ignore("max_tokens");
  if (fields.Read("min_tokens", tokens)) out.set_min_tokens(tokens);
  if (fields.Read("ignore_eos", flag)) out.set_ignore_eos(flag);
  if (fields.Read("include_stop_str_in_output", flag)) out.set_include_stop_in_output(flag);
  if (const Json* stop = fields.Find("stop"); stop != nullptr) {
    const Json list = stop->is_array() ? *stop : Json::array({*stop});
    for (const Json& text : list) {
      if (!text.is_string()) return fields.Fail("stop", "a text or a list of texts", *stop);
      out.add_stop_strings(text.get<std::string>());
    }
  }
  if (const Json* ids = fields.Find("stop_token_ids"); ids != nullptr && !ids->empty()) {
    if (!IsTokenIds(*ids)) return fields.Fail("stop_token_ids", "a list of token ids", *ids);
    for (const Json& id : *ids) out.add_stop_token_ids(id.get<int32_t>());
  }
}

void ReadResponse(JsonFields& fields, OpenAiKind kind, v1::ResponseOptions& out) {
  int32_t whole = 0;
  bool flag = false;
  if (fields.Read("n", whole)) out.set_n(whole);
  if (const Json* best_of = fields.Find("best_of");
      best_of != nullptr && *best_of != (out.has_n() ? out.n() : 1)) {
    fields.Unsupported("best_of");
  }
  if (fields.Read("skip_special_tokens", flag)) out.set_skip_special_tokens(flag);
  if (fields.Read("echo", flag)) {
    if (flag && kind == OpenAiKind::kChat) return fields.Fail("echo", "false for a chat", flag);
    out.set_echo(flag);
  }
  if (kind == OpenAiKind::kCompletion) {
    if (fields.Read("logprobs", whole)) {
      out.set_logprobs(whole);
      if (out.echo()) out.set_prompt_logprobs(whole);
    }
    return;
  }
  bool logprobs = false;
  fields.Read("logprobs", logprobs);
  const bool has_top = fields.Read("top_logprobs", whole);
  if (has_top && whole > 0 && !logprobs) {
    return fields.Fail("top_logprobs", "logprobs: true beside it", whole);
  }
  if (logprobs) out.set_logprobs(has_top ? whole : 0);
}

void ReadSession(JsonFields& fields, const HttpRequest& http, OpenAiRequest& out) {
  v1::GenerateRequest& generate = out.generate;
  std::string text;
  int64_t number = 0;
  bool flag = true;
  if (fields.Read("session_id", text)) {
    const absl::string_view header = http.Field("x-session-id");
    if (!header.empty() && header != text) {
      return fields.Fail("session_id", absl::StrCat("what the header x-session-id says, ", header),
                         text);
    }
  } else {
    text = std::string(http.Field("x-session-id"));
  }
  if (!text.empty()) generate.mutable_session()->set_name(text);
  if (fields.Read("session_ttl_ms", number)) generate.mutable_session()->set_ttl_ms(number);
  if (fields.Read("create_session", flag)) {
    generate.mutable_session()->set_create_if_missing(flag);
  }
  if (fields.Read("expected_position", number)) generate.set_expected_position(number);
  if (!fields.Read("idempotency_key", text)) text = std::string(http.Field("idempotency-key"));
  generate.set_idempotency_key(text);
  int32_t priority = 0;
  if (fields.Read("priority", priority)) generate.set_priority(priority);
  if (out.kind == OpenAiKind::kCompletion) return;
  if (!fields.Read("session_mode", text)) return;
  if (text == "append") {
    out.session_mode = SessionMode::kAppend;
  } else if (text != "whole") {
    fields.Fail("session_mode", "\"whole\" or \"append\"", text);
  }
}

void ReadPrompt(JsonFields& fields, OpenAiRequest& out) {
  constexpr absl::string_view kExpected =
      "a text, a list of texts, a list of token ids, or a list of such lists";
  const Json* prompt = fields.Find("prompt");
  bool special = true;
  const bool has_special = fields.Read("add_special_tokens", special);
  if (prompt == nullptr) {
    return fields.Fail(
        FieldError("prompt", absl::StrCat("prompt is missing, expected ", kExpected)));
  }
  const auto add = [&](const Json& one) {
    v1::GenerateRequest& request = out.prompts.emplace_back();
    if (has_special) request.set_add_special_tokens(special);
    if (one.is_string()) {
      request.set_text(one.get<std::string>());
      return true;
    }
    if (!IsTokenIds(one)) return false;
    for (const Json& id : one) request.mutable_token_ids()->add_ids(id.get<int32_t>());
    return true;
  };
  const bool is_list = prompt->is_array() && !IsTokenIds(*prompt);
  const Json list = is_list ? *prompt : Json::array({*prompt});
  if (list.empty()) return fields.Fail("prompt", kExpected, *prompt);
  if (list.size() > kMaxPrompts) {
    return fields.Fail(FieldError(
        "prompt",
        absl::StrCat("prompt has ", list.size(), " prompts, expected at most ", kMaxPrompts)));
  }
  for (const Json& one : list) {
    if (!add(one)) return fields.Fail("prompt", kExpected, one);
  }
  if (list.size() > 1 && !out.generate.session().name().empty()) {
    fields.Fail("prompt", "one prompt in a session", *prompt);
  }
}

void ReadMessages(JsonFields& fields, OpenAiRequest& out) {
  const Json* messages = fields.Find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    return fields.Fail("messages", "a list of at least one message",
                       messages == nullptr ? Json() : *messages);
  }
  out.messages = *messages;
  fields.Read("add_generation_prompt", out.add_generation_prompt);
  if (const Json* arguments = fields.Find("chat_template_kwargs"); arguments != nullptr) {
    if (!arguments->is_object()) {
      return fields.Fail("chat_template_kwargs", "an object", *arguments);
    }
    out.template_arguments = *arguments;
  }
}

// Features of other servers, refused unless their value asks for nothing.
void RefuseOthers(JsonFields& fields) {
  for (const char* name : {"suffix",
                           "tools",
                           "functions",
                           "function_call",
                           "guided_json",
                           "guided_regex",
                           "guided_choice",
                           "guided_grammar",
                           "guided_decoding_backend",
                           "structural_tag",
                           "structured_outputs",
                           "use_beam_search",
                           "audio",
                           "modalities",
                           "prediction",
                           "chat_template",
                           "continue_final_message",
                           "documents",
                           "truncate_prompt_tokens",
                           "prompt_logprobs",
                           "store",
                           "web_search_options",
                           "reasoning_effort",
                           "mm_processor_kwargs",
                           "logits_processors",
                           "allowed_token_ids",
                           "bad_words",
                           "return_tokens_as_token_ids",
                           "return_token_ids",
                           "kv_transfer_params"}) {
    fields.Unsupported(name);
  }
  fields.Unsupported("tool_choice", "none");
  fields.Unsupported("response_format", Json{{"type", "text"}});
  fields.Unsupported("typical_p", 1.0);
  fields.Unsupported("length_penalty", 1.0);
  fields.Unsupported("spaces_between_special_tokens", true);
  for (const char* name : {"user", "metadata", "service_tier", "parallel_tool_calls", "cache_salt",
                           "safety_identifier", "prompt_cache_key", "request_id"}) {
    fields.Ignore(name);
  }
}

}  // namespace

absl::StatusOr<OpenAiRequest> ToOpenAiRequest(OpenAiKind kind, const Json& body,
                                              const HttpRequest& http) {
  OpenAiRequest out;
  out.kind = kind;
  JsonFields fields(body);
  std::string model;
  if (fields.Read("model", model)) out.generate.set_model(model);
  ReadSampling(fields, *out.generate.mutable_sampling());
  ReadStop(fields, kind, *out.generate.mutable_stopping());
  ReadResponse(fields, kind, *out.generate.mutable_response());
  ReadSession(fields, http, out);
  kind == OpenAiKind::kChat ? ReadMessages(fields, out) : ReadPrompt(fields, out);
  fields.Read("stream", out.stream);
  if (const Json* options = fields.Find("stream_options"); options != nullptr) {
    if (!options->is_object() || !out.stream) {
      fields.Fail("stream_options", "an object, beside stream: true", *options);
    } else {
      JsonFields stream_fields(*options, "stream_options");
      stream_fields.Read("include_usage", out.include_usage);
      stream_fields.Ignore("include_obfuscation");
      fields.Fail(stream_fields.Finish());
    }
  }
  RefuseOthers(fields);
  MNEME_RETURN_IF_ERROR(fields.Finish());
  return out;
}

absl::Status WithOpenAiField(absl::Status status, OpenAiKind kind) {
  std::string field = FieldOf(status).value_or("");
  if (field.empty()) return status;
  const size_t dot = field.find('.');
  if (dot != std::string::npos) field = field.substr(dot + 1);
  if (field == "text" || field == "token_ids") {
    field = kind == OpenAiKind::kChat ? "messages" : "prompt";
  } else if (field == "stop_strings") {
    field = "stop";
  } else if (field == "name") {
    field = "session_id";
  } else if (field == "ttl_ms") {
    field = "session_ttl_ms";
  }
  status.SetPayload(kFieldPayload, absl::Cord(field));
  return status;
}

}  // namespace mneme
