#include "server/openai/openai_request.h"

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "engine/status_payload.h"

namespace mneme {
namespace {

// The most prompts of one request; more would rather be several requests.
constexpr size_t kMaxPrompts = 1024;
// As many tokens as OpenAI generates for a completion that does not say.
constexpr int kCompletionMaxTokens = 16;

bool IsTokenId(const Json& value) {
  return value.is_number_integer() && value >= 0 && value <= INT32_MAX;
}

bool IsTokenIds(const Json& value) {
  return value.is_array() && !value.empty() && absl::c_all_of(value, IsTokenId);
}

// Names the first entry of `list`, which is no list of token ids, though it seems to be meant so.
void FailAtBadId(JsonFields& fields, absl::string_view name, const Json& list) {
  size_t bad = 0;
  while (IsTokenId(list[bad])) ++bad;
  fields.Fail(absl::StrCat(name, "[", bad, "]"), "a token id", list[bad]);
}

void ReadSampling(JsonFields& fields, v1::SamplingOptions& out) {
  float number = 0;
  int32_t whole = 0;
  if (fields.Read("temperature", number)) out.set_temperature(number);
  if (fields.Read("top_p", number)) out.set_top_p(number);
  if (fields.Read("min_p", number)) out.set_min_p(number);
  // Other servers' "off" is -1.
  if (fields.Read("top_k", whole)) out.set_top_k(whole == -1 ? 0 : whole);
  if (fields.Read("repetition_penalty", number)) out.set_repetition_penalty(number);
  if (fields.Read("presence_penalty", number)) out.set_presence_penalty(number);
  if (fields.Read("frequency_penalty", number)) out.set_frequency_penalty(number);
  if (const Json* seed = fields.Find("seed"); seed != nullptr) {  // any 64 bits, with a sign or not
    if (!seed->is_number_integer()) return fields.Fail("seed", "a whole number", *seed);
    out.set_seed(seed->get<uint64_t>());
  }
  if (const Json* bias = fields.Find("logit_bias"); bias != nullptr) {
    if (!bias->is_object()) {
      return fields.Fail("logit_bias", "an object from token ids to numbers", *bias);
    }
    for (const auto& [key, value] : bias->items()) {
      int32_t id = 0;
      if (!absl::SimpleAtoi(key, &id) || !value.is_number()) {
        return fields.Fail("logit_bias", "an object from token ids to numbers", *bias);
      }
      if (!out.mutable_logit_bias()->insert({id, value.get<float>()}).second) {
        return fields.Fail("logit_bias", absl::StrCat("names token ", id, " twice"));
      }
    }
  }
}

// A chat has a new name for it and an old one.
void ReadMaxTokens(JsonFields& fields, OpenAiRequest& out) {
  v1::StoppingOptions& stopping = *out.generate.mutable_stopping();
  int32_t tokens = 0;
  if (fields.Read("max_tokens", tokens)) stopping.set_max_tokens(tokens);
  if (out.kind == OpenAiKind::kCompletion) {
    if (!stopping.has_max_tokens()) stopping.set_max_tokens(kCompletionMaxTokens);
    if (fields.Has("max_completion_tokens")) {
      fields.Fail("max_completion_tokens", "is a chat's; a completion has max_tokens");
    }
    return;
  }
  if (!fields.Read("max_completion_tokens", tokens)) return;
  if (stopping.has_max_tokens() && stopping.max_tokens() != tokens) {
    return fields.Fail("max_completion_tokens",
                       absl::StrCat("what max_tokens says, ", stopping.max_tokens()), tokens);
  }
  stopping.set_max_tokens(tokens);
  out.names.max_tokens = "max_completion_tokens";
}

void ReadStop(JsonFields& fields, v1::StoppingOptions& out) {
  int32_t tokens = 0;
  bool flag = false;
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
  if (const Json* ids = fields.Find("stop_token_ids"); ids != nullptr && *ids != Json::array()) {
    if (!IsTokenIds(*ids)) return fields.Fail("stop_token_ids", "a list of token ids", *ids);
    for (const Json& id : *ids) out.add_stop_token_ids(id.get<int32_t>());
  }
}

void ReadResponse(JsonFields& fields, OpenAiRequest& request) {
  v1::ResponseOptions& out = *request.generate.mutable_response();
  const bool is_chat = request.kind == OpenAiKind::kChat;
  int32_t whole = 0;
  bool flag = false;
  if (fields.Read("n", whole)) out.set_n(whole);
  if (const Json* best_of = fields.Find("best_of");
      best_of != nullptr && *best_of != (out.has_n() ? out.n() : 1)) {
    fields.Unsupported("best_of");
  }
  if (fields.Read("skip_special_tokens", flag)) out.set_skip_special_tokens(flag);
  if (fields.Read("surprise", flag)) out.set_surprise(flag);
  if (fields.Read("memory_use", flag)) out.set_memory_use(flag);
  if (fields.Read("echo", flag)) {
    if (flag && is_chat) return fields.Fail("echo", "false for a chat", flag);
    out.set_echo(flag);
  }
  if (!is_chat) {
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
  request.names.logprobs = "top_logprobs";
}

// Empty if it is in neither.
std::string ReadFieldOrHeader(JsonFields& fields, absl::string_view name, const HttpRequest& http,
                              absl::string_view header) {
  const int times = absl::c_count_if(http.fields, [&](const HttpField& field) {
    return absl::EqualsIgnoreCase(field.name, header);
  });
  const absl::string_view in_header = http.Field(header);
  if (times > 1) fields.Fail(FieldError(header, "is there twice"));
  if (times > 0 && in_header.empty()) {
    fields.Fail(FieldError(header, "is empty; leave it out to have none"));
  }
  std::string text;
  if (!fields.Read(name, text)) return std::string(in_header);
  if (text.empty()) {
    fields.Fail(name, "is empty; leave it out to have none");
  } else if (!in_header.empty() && in_header != text) {
    fields.Fail(
        name,
        absl::StrCat("what the header ", header, " says, ", SanitizeUtf8(Shortened(in_header, 60))),
        text);
  }
  return text;
}

}  // namespace

std::optional<uint64_t> ReadMemorySeed(JsonFields& fields) {
  constexpr absl::string_view kField = "memory_seed";
  constexpr absl::string_view kExpected =
      "an integer from 0 to 2^64 - 1, or the same as a text of its decimal digits";
  const Json* seed = fields.Find(kField);
  if (seed == nullptr || seed->is_null()) return std::nullopt;
  if (seed->is_number_unsigned()) return seed->get<uint64_t>();
  uint64_t value = 0;
  if (seed->is_string()) {
    const auto& text = seed->get_ref<const std::string&>();
    if (absl::c_all_of(text, absl::ascii_isdigit) && absl::SimpleAtoi(text, &value)) return value;
  }
  // As a number of the body it is a double by now, which is not what was written.
  constexpr double kTooLarge = 0x1p64;
  if (seed->is_number_float() && seed->get<double>() >= kTooLarge) {
    fields.Fail(kField, absl::StrCat("is 2^64 or more, expected ", kExpected));
  } else {
    fields.Fail(kField, kExpected, *seed);
  }
  return std::nullopt;
}

v1::Durability ReadDurability(JsonFields& fields) {
  std::string durability;
  if (!fields.Read("durability", durability)) return v1::DURABILITY_UNSPECIFIED;
  if (durability == "turn") return v1::DURABILITY_TURN;
  if (durability != "none") fields.Fail("durability", "\"turn\" or \"none\"", durability);
  return v1::DURABILITY_NONE;
}

namespace {

// Clients that send conversations have people edit them, and ask for an answer anew.
void ReadOnMismatch(JsonFields& fields, OpenAiRequest& out) {
  v1::SessionOptions& session = *out.generate.mutable_session();
  if (session.name().empty()) return;
  if (out.conversation.appends) {
    if (fields.Has("on_mismatch")) fields.Fail("on_mismatch", "has no effect beside append");
    return;
  }
  std::string what = "rewind";
  fields.Read("on_mismatch", what);
  if (what == "rewind") return session.set_on_mismatch(v1::ON_MISMATCH_REWIND);
  if (what == "refuse") return session.set_on_mismatch(v1::ON_MISMATCH_REFUSE);
  if (what == "replace") return session.set_on_mismatch(v1::ON_MISMATCH_REPLACE);
  fields.Fail("on_mismatch", "\"rewind\", \"refuse\" or \"replace\"", what);
}

void ReadSession(JsonFields& fields, const HttpRequest& http, OpenAiRequest& out) {
  v1::GenerateRequest& generate = out.generate;
  const std::string session = ReadFieldOrHeader(fields, "session_id", http, "x-session-id");
  generate.mutable_session()->set_name(session);
  generate.set_idempotency_key(
      ReadFieldOrHeader(fields, "idempotency_key", http, "idempotency-key"));
  const auto needs_session = [&](absl::string_view name) {
    if (session.empty() && fields.Has(name)) {
      fields.Fail(name, "has no effect without a session_id");
    }
  };
  for (const char* name : {"session_ttl_ms", "create_session", "must_exist", "expected_position",
                           "durability", "replace_lost", "remember"}) {
    needs_session(name);
  }
  bool remember = true;
  if (fields.Read("remember", remember)) generate.mutable_session()->set_remember(remember);
  bool detached = false;
  if (fields.Read("detached", detached)) generate.set_detached(detached);
  generate.mutable_session()->set_durability(ReadDurability(fields));
  bool replaces_lost = false;
  if (fields.Read("replace_lost", replaces_lost)) {
    generate.mutable_session()->set_replace_lost(replaces_lost);
  }
  if (const std::optional<uint64_t> seed = ReadMemorySeed(fields); seed.has_value()) {
    generate.mutable_session()->set_memory_seed(*seed);
  }
  int64_t number = 0;
  bool flag = true;
  if (fields.Read("session_ttl_ms", number)) generate.mutable_session()->set_ttl_ms(number);
  if (fields.Read("create_session", flag)) {
    generate.mutable_session()->set_create_if_missing(flag);
  }
  if (fields.Read("must_exist", flag)) generate.mutable_session()->set_must_exist(flag);
  if (fields.Read("expected_position", number)) generate.set_expected_position(number);
  int32_t priority = 0;
  if (fields.Read("priority", priority)) generate.set_priority(priority);
  if (out.kind == OpenAiKind::kCompletion) return;
  needs_session("session_mode");
  needs_session("on_mismatch");
  std::string mode = "whole";
  fields.Read("session_mode", mode);
  if (mode == "append") {
    out.conversation.appends = true;
  } else if (mode != "whole") {
    fields.Fail("session_mode", "\"whole\" or \"append\"", mode);
  }
  ReadOnMismatch(fields, out);
}

// Names of vLLM and llama.cpp, where these have one.
void ReadPrefixCache(JsonFields& fields, v1::PrefixCacheOptions& out) {
  bool use = true;
  std::string salt;
  if (fields.Read("cache_prompt", use)) out.set_bypass(!use);
  if (fields.Read("cache_salt", salt)) out.set_salt(salt);
  const Json* marks = fields.Find("cache_marks");
  if (marks == nullptr) return;
  if (!marks->is_array()) return fields.Fail("cache_marks", "a list of numbers of tokens", *marks);
  for (const Json& mark : *marks) {
    if (!mark.is_number_integer()) {
      return fields.Fail("cache_marks", "a list of numbers of tokens", *marks);
    }
    out.add_marks(mark.get<int64_t>());
  }
}

void ReadPrompt(JsonFields& fields, OpenAiRequest& out) {
  constexpr absl::string_view kExpected =
      "a text, a list of texts, a list of token ids, or a list of such lists";
  const Json* prompt = fields.Find("prompt");
  bool special = true;
  const bool has_special = fields.Read("add_special_tokens", special);
  bool parse_special = true;
  const bool has_parse = fields.Read("parse_special", parse_special);
  if (prompt == nullptr) {
    return fields.Fail("prompt", absl::StrCat("is missing, expected ", kExpected));
  }
  const auto add = [&](const Json& one) {
    v1::GenerateRequest& request = out.prompts.emplace_back();
    if (has_special) request.set_add_special_tokens(special);
    if (has_parse) request.set_parse_special(parse_special);
    if (one.is_string()) {
      request.set_text(one.get<std::string>());
      return true;
    }
    if (!IsTokenIds(one)) return false;
    if (special && has_special)
      fields.Fail("add_special_tokens", "false beside token ids", special);
    if (parse_special && has_parse)
      fields.Fail("parse_special", "false beside token ids", parse_special);
    for (const Json& id : one) request.mutable_token_ids()->add_ids(id.get<int32_t>());
    return true;
  };
  const bool is_list = prompt->is_array() && !IsTokenIds(*prompt);
  const std::span<const Json> list =
      is_list ? std::span<const Json>(prompt->get_ref<const Json::array_t&>())
              : std::span<const Json>(prompt, 1);
  if (list.empty() || !(prompt->is_string() || prompt->is_array())) {
    return fields.Fail("prompt", kExpected, *prompt);
  }
  if (list[0].is_number()) return FailAtBadId(fields, "prompt", *prompt);
  if (list.size() > kMaxPrompts) {
    return fields.Fail(
        "prompt", absl::StrCat("has ", list.size(), " prompts, expected at most ", kMaxPrompts));
  }
  for (size_t i = 0; i < list.size(); ++i) {
    if (add(list[i])) continue;
    const std::string name = absl::StrCat("prompt[", i, "]");
    if (list[i].is_array() && !list[i].empty()) return FailAtBadId(fields, name, list[i]);
    return fields.Fail(name, "a text or a list of token ids", list[i]);
  }
  out.names.many_prompts = list.size() > 1;
  if (out.names.many_prompts && !out.generate.session().name().empty()) {
    fields.Fail("prompt", "one prompt in a session", *prompt);
  }
}

// Features of other servers, refused unless their value asks for nothing.
void RefuseOthers(JsonFields& fields) {
  for (const char* name : {"suffix",
                           "tools",
                           "functions",
                           "guided_json",
                           "guided_regex",
                           "guided_choice",
                           "guided_grammar",
                           "guided_decoding_backend",
                           "structural_tag",
                           "structured_outputs",
                           "use_beam_search",
                           "audio",
                           "prediction",
                           "chat_template",
                           "continue_final_message",
                           "documents",
                           "truncate_prompt_tokens",
                           "prompt_logprobs",
                           "web_search_options",
                           "mm_processor_kwargs",
                           "logits_processors",
                           "allowed_token_ids",
                           "bad_words",
                           "return_tokens_as_token_ids",
                           "return_token_ids",
                           "kv_transfer_params"}) {
    fields.Unsupported(name);
  }
  // Without tools, which are refused, "auto" is "none".
  for (const char* name : {"tool_choice", "function_call"}) {
    fields.Unsupported(name, "none", "auto");
  }
  fields.Unsupported("modalities", Json::array({"text"}));
  fields.Unsupported("response_format", Json{{"type", "text"}});
  fields.Unsupported("typical_p", 1.0);
  fields.Unsupported("length_penalty", 1.0);
  fields.Unsupported("spaces_between_special_tokens", true);
  for (const char* name :
       {"user", "metadata", "store", "service_tier", "parallel_tool_calls", "verbosity",
        "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "request_id"}) {
    fields.Ignore(name);
  }
}

}  // namespace

void ReadMessages(JsonFields& fields, OpenAiRequest& out) {
  out.names.prompt = "messages";
  constexpr absl::string_view kExpected = "a list of at least one message";
  const Json* messages = fields.Find("messages");
  if (messages == nullptr) {
    return fields.Fail("messages", absl::StrCat("is missing, expected ", kExpected));
  }
  if (!messages->is_array() || messages->empty()) {
    return fields.Fail("messages", kExpected, *messages);
  }
  out.conversation.messages = *messages;
  fields.Read("add_generation_prompt", out.conversation.add_generation_prompt);
  if (const Json* arguments = fields.Find("chat_template_kwargs"); arguments != nullptr) {
    if (!arguments->is_object()) {
      return fields.Fail("chat_template_kwargs", "an object", *arguments);
    }
    out.conversation.template_arguments = *arguments;
  }
  // How much a model thinks is what its template makes of it; most make nothing.
  constexpr char kEffort[] = "reasoning_effort";
  if (std::string effort; fields.Read(kEffort, effort)) {
    Json& arguments = out.conversation.template_arguments;
    const auto given = arguments.find(kEffort);
    if (given != arguments.end() && *given != effort) {
      return fields.Fail(
          kEffort, absl::StrCat("what chat_template_kwargs says, ", ShownJson(*given)), effort);
    }
    arguments[kEffort] = effort;
  }
}

absl::StatusOr<OpenAiRequest> ToOpenAiRequest(OpenAiKind kind, const Json& body,
                                              const HttpRequest& http) {
  OpenAiRequest out;
  out.kind = kind;
  JsonFields fields(body);
  std::string model;
  if (fields.Read("model", model)) out.generate.set_model(model);
  ReadSampling(fields, *out.generate.mutable_sampling());
  ReadMaxTokens(fields, out);
  ReadStop(fields, *out.generate.mutable_stopping());
  ReadResponse(fields, out);
  ReadSession(fields, http, out);
  ReadPrefixCache(fields, *out.generate.mutable_prefix_cache());
  if (kind == OpenAiKind::kChat) {
    ReadMessages(fields, out);
    fields.Unsupported("add_special_tokens");  // the template has them
    fields.Unsupported("parse_special");       // in what the template writes, and nowhere else
  } else {
    ReadPrompt(fields, out);
  }
  fields.Read("stream", out.stream);
  if (const Json* options = fields.Find("stream_options"); options != nullptr) {
    if (!options->is_object() || !out.stream) {
      fields.Fail("stream_options", "an object, beside stream: true", *options);
    } else {
      JsonFields stream_fields(*options, "stream_options");
      stream_fields.Read("include_usage", out.include_usage);
      stream_fields.Ignore("include_obfuscation");
      stream_fields.Unsupported("continuous_usage_stats");
      fields.Fail(stream_fields.Finish());
    }
  }
  const v1::ResponseOptions& response = out.generate.response();
  for (const auto& [name, asked] : {std::pair("surprise", response.surprise()),
                                    std::pair("memory_use", response.memory_use())}) {
    if (!asked || !out.stream || out.include_usage) continue;
    fields.Fail(
        name, "false in a stream without usage (stream_options.include_usage), which has it", true);
  }
  RefuseOthers(fields);
  MNEME_RETURN_IF_ERROR(fields.Finish());
  return out;
}

}  // namespace mneme
