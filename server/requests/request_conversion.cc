#include "server/requests/request_conversion.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/request_check.h"
#include "engine/status_payload.h"
#include "server/requests/request_id.h"
#include "server/requests/text_encoder.h"

namespace mneme {
namespace {

constexpr int64_t kMaxTtlMs = int64_t{10} * 365 * 24 * 3600 * 1000;

// For messages: enough of a text to recognise it, without line breaks.
std::string Quoted(absl::string_view text) {
  const bool long_text = text.size() > 60;
  return absl::StrCat("\"", absl::Utf8SafeCEscape(text.substr(0, 60)), long_text ? "...\"" : "\"");
}

absl::StatusOr<Prompt> ToPrompt(const v1::GenerateRequest& request, const Engine& engine,
                                const ServingFacts& facts, WorkMeter& meter) {
  Prompt prompt;
  if (request.has_token_ids()) {
    const auto& ids = request.token_ids().ids();
    prompt.at_start.assign(ids.begin(), ids.end());
    prompt.same_everywhere = true;
    prompt.source = PromptSource::kTokenIds;
    return prompt;
  }
  if (!request.has_text()) return prompt;
  MNEME_ASSIGN_OR_RETURN(const Tokenizer* tokenizer, NeedTokenizer(engine, "text"));
  const absl::string_view text = request.text();
  MNEME_RETURN_IF_ERROR(CheckTextSize(text, "text", facts));
  // BOS alone begins a session only if the request says so itself: an empty prompt is rather a
  // mistake, and where a token is pending it means "go on".
  const bool add_bos = request.has_add_special_tokens() ? request.add_special_tokens()
                                                        : tokenizer->adds_bos() && !text.empty();
  const EncodeOptions start{.add_bos = add_bos, .parse_special = ParsesSpecial(request)};
  MNEME_ASSIGN_OR_RETURN(prompt.at_start, EncodeText(*tokenizer, text, start, facts, meter));
  if (!request.session().name().empty()) {  // an ephemeral session is never continued
    const EncodeOptions middle{.continuation = true, .parse_special = ParsesSpecial(request)};
    MNEME_ASSIGN_OR_RETURN(prompt.continued, EncodeText(*tokenizer, text, middle, facts, meter));
  }
  return prompt;
}

SamplingParams ToSampling(const v1::SamplingOptions& given, const v1::SamplingOptions& defaults) {
  v1::SamplingOptions options = defaults;
  options.MergeFrom(given);
  SamplingParams sampling;
  if (options.has_temperature()) sampling.temperature = options.temperature();
  if (options.has_top_k()) sampling.top_k = options.top_k();
  if (options.has_top_p()) sampling.top_p = options.top_p();
  if (options.has_min_p()) sampling.min_p = options.min_p();
  if (options.has_repetition_penalty()) sampling.repetition_penalty = options.repetition_penalty();
  if (options.has_presence_penalty()) sampling.presence_penalty = options.presence_penalty();
  if (options.has_frequency_penalty()) sampling.frequency_penalty = options.frequency_penalty();
  if (options.has_seed()) sampling.seed = options.seed();
  sampling.logit_bias.assign(options.logit_bias().begin(), options.logit_bias().end());
  // A map has no order of its own, and a repeated request has to look the same.
  std::sort(sampling.logit_bias.begin(), sampling.logit_bias.end());
  return sampling;
}

// How much a request may generate that does not say: the default, or what --max-model-len leaves
// beside the prompt if that is less.
absl::StatusOr<int> UnsetMaxTokens(const Prompt& prompt, int min_tokens, const Engine& engine,
                                   const ServingFacts& facts) {
  int max_tokens = facts.default_max_tokens;
  std::string origin = "the server's default";
  const int limit = engine.options().max_request_tokens;
  const auto tokens =
      static_cast<int64_t>(std::max(prompt.at_start.size(), prompt.continued.size()));
  if (limit > 0 && max_tokens > 0 && tokens + max_tokens > limit) {
    if (tokens >= limit) {
      return FieldError(PromptField(prompt),
                        absl::StrCat("has ", tokens, " tokens, expected at most ", limit - 1,
                                     ": one less than the limit on prompt and answer together, ",
                                     limit, " (--max-model-len)"));
    }
    max_tokens = static_cast<int>(limit - tokens);
    origin = absl::StrCat("what the limit of ", limit, " (--max-model-len) leaves");
  }
  if (min_tokens > max_tokens) {
    return FieldError(
        "stopping.min_tokens",
        absl::StrCat("is ", min_tokens, ", expected 0 to max_tokens, which is not set and so ",
                     max_tokens, ", ", origin));
  }
  return max_tokens;
}

// Whether a session that is missing is made.
absl::StatusOr<bool> CreatesSession(const v1::SessionOptions& session) {
  if (!session.must_exist()) {
    return !session.has_create_if_missing() || session.create_if_missing();
  }
  constexpr char kField[] = "session.must_exist";
  if (session.name().empty()) return FieldError(kField, "is true, and there is no session's name");
  if (session.create_if_missing()) {
    return FieldError(kField,
                      "is true, and so is what creates a missing session; expected one of them");
  }
  return false;
}

absl::StatusOr<OnMismatch> ToOnMismatch(int on_mismatch) {
  switch (on_mismatch) {
    case v1::ON_MISMATCH_UNSPECIFIED:
    case v1::ON_MISMATCH_REFUSE:
      return OnMismatch::kRefuse;
    case v1::ON_MISMATCH_REWIND:
      return OnMismatch::kRewind;
    case v1::ON_MISMATCH_REPLACE:
      return OnMismatch::kReplace;
    default:
      return FieldError("session.on_mismatch",
                        absl::StrCat("is ", on_mismatch, ", expected an OnMismatch"));
  }
}

// What is said of a session that is to be begun or kept has no effect where none is.
absl::Status CheckForgotten(const v1::SessionOptions& session) {
  const auto vain = [](absl::string_view field) {
    return FieldError(absl::StrCat("session.", field), "has no effect beside remember: false");
  };
  if (session.ttl_ms() != 0) return vain("ttl_ms");
  if (session.durability() != v1::DURABILITY_UNSPECIFIED) return vain("durability");
  if (session.replace_lost()) return vain("replace_lost");
  return absl::OkStatus();
}

// All but max_tokens.
StopParams ToStop(const v1::StoppingOptions& options) {
  StopParams stop;
  stop.min_tokens = options.min_tokens();
  stop.ignore_eos = options.ignore_eos();
  stop.stop_token_ids.assign(options.stop_token_ids().begin(), options.stop_token_ids().end());
  stop.stop_strings.assign(options.stop_strings().begin(), options.stop_strings().end());
  stop.include_stop_in_output = options.include_stop_in_output();
  return stop;
}

// -1 is the engine's "none", which a request says by leaving the field out: it is checked here.
absl::Status FillResponseOptions(const v1::ResponseOptions& options, Request& out) {
  if (options.has_n()) out.n = options.n();
  if (options.has_logprobs()) {
    MNEME_RETURN_IF_ERROR(CheckLogprobs("response.logprobs", options.logprobs()));
    out.logprobs = options.logprobs();
  }
  if (options.has_prompt_logprobs()) {
    MNEME_RETURN_IF_ERROR(CheckLogprobs("response.prompt_logprobs", options.prompt_logprobs()));
    out.prompt_logprobs = options.prompt_logprobs();
  }
  out.echo = options.echo();
  out.surprise = options.surprise();
  out.memory_use = options.memory_use();
  out.skip_special_tokens = !options.has_skip_special_tokens() || options.skip_special_tokens();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<absl::Duration> ToTtl(absl::string_view field, int64_t ttl_ms,
                                     const ServingFacts& facts) {
  if (ttl_ms < -1 || ttl_ms > kMaxTtlMs) {
    return FieldError(
        field, absl::StrCat("is ", ttl_ms, ", expected -1 (never) to ", kMaxTtlMs, " (ten years)"));
  }
  const absl::Duration ttl = ttl_ms < 0 ? absl::InfiniteDuration() : absl::Milliseconds(ttl_ms);
  if (ttl > facts.max_session_ttl) {
    return FieldError(field, absl::StrCat("is ", ttl_ms, ttl_ms < 0 ? " (never)" : "",
                                          ", expected 0 (the server's default) to ",
                                          absl::ToInt64Milliseconds(facts.max_session_ttl),
                                          " (--max-session-ttl)"));
  }
  return ttl;
}

absl::StatusOr<std::optional<Durability>> ToDurability(absl::string_view field, int durability) {
  switch (durability) {
    case v1::DURABILITY_UNSPECIFIED:
      return std::nullopt;
    case v1::DURABILITY_TURN:
      return Durability::kTurn;
    case v1::DURABILITY_NONE:
      return Durability::kNone;
    default:
      return FieldError(field, absl::StrCat("is ", durability, ", expected a Durability"));
  }
}

absl::Status CheckRequestId(absl::string_view id) {
  if (id.size() > kMaxRequestIdBytes) {
    return FieldError("request_id", absl::StrCat("has ", id.size(), " bytes, expected at most ",
                                                 kMaxRequestIdBytes));
  }
  for (const char c : id) {
    if (c >= 0x20 && c < 0x7f) continue;
    return FieldError("request_id", absl::StrCat(Quoted(id), " is not printable ASCII"));
  }
  return absl::OkStatus();
}

absl::Status CheckModelName(absl::string_view name, const ServingFacts& facts) {
  const std::string& served = facts.model_name;
  if (name.empty() || name == served) return absl::OkStatus();
  const absl::Status status = absl::NotFoundError(
      absl::StrCat("model ", Quoted(name), " is not served here; \"", served, "\" is"));
  return WithField(WithReason(status, "MODEL_NOT_FOUND"), "model");
}

absl::Status CheckNoMismatch(const v1::GenerateRequest& request) {
  if (request.session().on_mismatch() == v1::ON_MISMATCH_UNSPECIFIED) return absl::OkStatus();
  return FieldError("session.on_mismatch",
                    "has no effect where no whole conversation is sent to a session");
}

absl::StatusOr<Request> ToEngineRequest(const v1::GenerateRequest& request, const CallFacts& call,
                                        const Engine& engine, const ServingFacts& facts,
                                        WorkMeter& meter) {
  MNEME_RETURN_IF_ERROR(CheckNoMismatch(request));
  const auto make_prompt = [&] { return ToPrompt(request, engine, facts, meter); };
  return ToEngineRequest(request, make_prompt, call, engine, facts);
}

absl::StatusOr<Request> ToEngineRequest(const v1::GenerateRequest& request,
                                        absl::FunctionRef<absl::StatusOr<Prompt>()> make_prompt,
                                        const CallFacts& call, const Engine& engine,
                                        const ServingFacts& facts) {
  MNEME_RETURN_IF_ERROR(CheckModelName(request.model(), facts));
  Request out;
  out.id = call.request_id;
  out.origin = call.origin;
  out.deadline = call.deadline;

  const v1::SessionOptions& session = request.session();
  out.session.owner = call.owner;
  out.session.name = session.name();
  MNEME_ASSIGN_OR_RETURN(out.create_session, CreatesSession(session));
  MNEME_ASSIGN_OR_RETURN(out.session_ttl, ToTtl("session.ttl_ms", session.ttl_ms(), facts));

  MNEME_ASSIGN_OR_RETURN(out.durability, ToDurability("session.durability", session.durability()));
  out.replaces_lost = session.replace_lost();
  if (session.has_memory_seed()) out.memory_seed = session.memory_seed();
  MNEME_ASSIGN_OR_RETURN(out.on_mismatch, ToOnMismatch(session.on_mismatch()));
  out.remember = !session.has_remember() || session.remember();
  if (!out.remember) MNEME_RETURN_IF_ERROR(CheckForgotten(session));

  out.sampling = ToSampling(request.sampling(), facts.sampling_defaults);
  out.stop = ToStop(request.stopping());
  MNEME_RETURN_IF_ERROR(FillResponseOptions(request.response(), out));

  out.prefix_cache.bypass = request.prefix_cache().bypass();
  out.prefix_cache.salt = request.prefix_cache().salt();
  out.prefix_cache.marks.assign(request.prefix_cache().marks().begin(),
                                request.prefix_cache().marks().end());
  if (request.has_expected_position()) out.expected_position = request.expected_position();
  out.idempotency_key = request.idempotency_key();
  out.priority = request.priority();
  out.detached = request.detached();
  if (request.detached()) {
    if (session.name().empty() && request.idempotency_key().empty()) {
      return FieldError(
          "detached",
          "needs a session's name or an idempotency_key: without, nobody could have the "
          "result");
    }
  }

  // Last, because it may take long.
  MNEME_ASSIGN_OR_RETURN(out.prompt, make_prompt());
  out.stop.max_tokens = request.stopping().max_tokens();
  if (!request.stopping().has_max_tokens()) {
    MNEME_ASSIGN_OR_RETURN(
        out.stop.max_tokens,
        UnsetMaxTokens(out.prompt, request.stopping().min_tokens(), engine, facts));
  }
  return out;
}

}  // namespace mneme
