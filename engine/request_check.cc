#include "engine/request_check.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/sampler.h"
#include "engine/status_payload.h"
#include "engine/stop_condition.h"
#include "models/weight_scan.h"
#include "store/record.h"

namespace mneme {
namespace {

absl::Status CheckPrompt(const std::vector<int32_t>& prompt, int vocab) {
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] >= 0 && prompt[i] < vocab) continue;
    const std::string field = absl::StrCat("token_ids.ids[", i, "]");
    return FieldError(field, absl::StrCat("is ", prompt[i], ", expected 0 to ", vocab - 1));
  }
  return absl::OkStatus();
}

// How long the prompt is, and the answer that may follow it.
absl::Status CheckLengths(const Request& r, const RequestBounds& bounds) {
  const absl::string_view field = PromptField(r.prompt);
  const auto prompt_tokens =
      static_cast<int64_t>(std::max(r.prompt.at_start.size(), r.prompt.continued.size()));
  if (r.prompt.at_start.empty() && r.session.name.empty()) {
    return FieldError(field, absl::StrCat("is empty, expected at least one token",
                                          r.classify ? ""
                                                     : "; only a named session with a pending "
                                                       "token goes on without"));
  }
  const auto check_prompt = [&](int64_t most, absl::string_view flag) {
    if (most <= 0 || prompt_tokens <= most) return absl::OkStatus();
    return FieldError(field, absl::StrCat("has ", prompt_tokens, " tokens, expected at most ", most,
                                          " (", flag, ")"));
  };
  MNEME_RETURN_IF_ERROR(check_prompt(bounds.max_prompt_tokens, "--max-prompt-tokens"));
  MNEME_RETURN_IF_ERROR(check_prompt(bounds.max_request_tokens, "--max-model-len"));
  if (bounds.max_request_tokens <= 0 ||
      prompt_tokens + r.stop.max_tokens <= bounds.max_request_tokens) {
    return absl::OkStatus();
  }
  return FieldError(field, absl::StrCat("has ", prompt_tokens, " tokens and max_tokens is ",
                                        r.stop.max_tokens, ", expected at most ",
                                        bounds.max_request_tokens, " together (--max-model-len)"));
}

// A draw needs a token that is not banned. Nothing else takes all of them away: penalties are
// finite, and top_k, top_p and min_p keep the most likely one.
absl::Status CheckSomethingIsLeftToDraw(const Request& r, const RequestBounds& bounds) {
  if (r.stop.max_tokens == 0) return absl::OkStatus();
  absl::flat_hash_set<int32_t> banned;
  for (const auto& [token, bias] : r.sampling.logit_bias) {
    if (bias <= kBanBias) banned.insert(token);
  }
  const auto bans_all = [&] { return banned.size() >= static_cast<size_t>(bounds.vocab); };
  if (bans_all()) {
    return FieldError("sampling.logit_bias",
                      absl::StrCat("bans all ", bounds.vocab,
                                   " tokens of the vocabulary, expected at least one to be left"));
  }
  if (r.stop.min_tokens == 0) return absl::OkStatus();
  for (const int32_t token : StopRules(r.stop, bounds.end_tokens).StopTokens()) {
    if (token >= 0 && token < bounds.vocab) banned.insert(token);
  }
  if (!bans_all()) return absl::OkStatus();
  return FieldError("stopping.min_tokens",
                    absl::StrCat("is ", r.stop.min_tokens,
                                 ", and before that many no token can be drawn: end tokens, "
                                 "stop_token_ids and logit_bias ban all ",
                                 bounds.vocab, " tokens of the vocabulary"));
}

// A text has its own session, and a place in the model for all of its tokens.
absl::Status CheckText(const Request& r, const RequestBounds& bounds) {
  const auto tokens = static_cast<int64_t>(r.prompt.at_start.size());
  if (!r.session.name.empty()) {
    return FieldError("session.name", "is there, expected none: a text is classified by itself");
  }
  if (bounds.classes->one_segment && tokens > bounds.classes->segment) {
    return FieldError(PromptField(r.prompt),
                      absl::StrCat("has ", tokens, " tokens, expected at most ",
                                   bounds.classes->segment, ", the positions that the model has"));
  }
  if (!r.token_types.empty() && static_cast<int64_t>(r.token_types.size()) != tokens) {
    return FieldError("token_types",
                      absl::StrCat("has ", r.token_types.size(),
                                   " numbers, expected one for each of ", tokens, " tokens"));
  }
  for (size_t i = 0; i < r.token_types.size(); ++i) {
    MNEME_RETURN_IF_ERROR(CheckRange(absl::StrCat("token_types[", i, "]"), r.token_types[i], 0,
                                     bounds.classes->types - 1));
  }
  return absl::OkStatus();
}

absl::Status CheckPrefixCache(const Request& r) {
  const PrefixCacheParams& params = r.prefix_cache;
  if (params.salt.size() > kMaxCacheSaltBytes) {
    return FieldError(
        "prefix_cache.salt",
        absl::StrCat("has ", params.salt.size(), " bytes, expected at most ", kMaxCacheSaltBytes));
  }
  if (params.marks.size() > kMaxCacheMarks) {
    return FieldError(
        "prefix_cache.marks",
        absl::StrCat("has ", params.marks.size(), " entries, expected at most ", kMaxCacheMarks));
  }
  for (const int64_t mark : params.marks) {
    MNEME_RETURN_IF_ERROR(
        CheckRange("prefix_cache.marks", mark, 1, static_cast<int64_t>(r.prompt.at_start.size())));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return FieldError(field, absl::StrCat("is ", value, ", expected ", low, " to ", high));
}

absl::Status CheckKind(bool classify, const Classes* classes) {
  if (classify == (classes != nullptr)) return absl::OkStatus();
  return WithReason(
      absl::FailedPreconditionError(
          classify ? "the model generates text and has no classes: expected Generate or Chat, "
                     "/v1/completions or /v1/chat/completions"
                   : "the model classifies texts and generates none: expected Classify or "
                     "/v1/classify"),
      kReasonWrongKind);
}

absl::string_view PromptField(const Prompt& prompt) {
  switch (prompt.source) {
    case PromptSource::kText:
      return "text";
    case PromptSource::kTokenIds:
      return "token_ids";
    case PromptSource::kMessages:
      return "messages";
  }
  return "";
}

absl::Status CheckLogprobs(absl::string_view field, int value) {
  return CheckRange(field, value, 0, kMaxTopLogprobs);
}

absl::Status ValidateRewindPosition(int64_t position, absl::string_view field) {
  if (position >= 0) return absl::OkStatus();
  return FieldError(
      field, absl::StrCat("is ", position, ", expected 0, where every session begins, or more"));
}

absl::Status ValidateSessionName(absl::string_view name, absl::string_view field) {
  if (name.empty() || name.size() > kMaxSessionNameBytes) {
    return FieldError(
        field, absl::StrCat("has ", name.size(), " bytes, expected 1 to ", kMaxSessionNameBytes));
  }
  for (size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
        absl::string_view("._:/@+-").find(c) != absl::string_view::npos) {
      continue;
    }
    return FieldError(field, absl::StrCat("\"", absl::CHexEscape(name), "\" has \"",
                                          absl::CHexEscape(name.substr(i, 1)), "\" at byte ", i,
                                          ", expected A-Z a-z 0-9 . _ : / @ + -"));
  }
  return absl::OkStatus();
}

absl::Status CheckDurability(std::optional<Durability> durability, bool stores_sessions) {
  if (durability != Durability::kTurn || stores_sessions) return absl::OkStatus();
  return FieldError("session.durability",
                    "is turn, and this server stores no sessions, as it would with --session-dir");
}

absl::Status CheckMemorySeed(absl::string_view field, std::optional<uint64_t> seed, bool draws) {
  if (!seed.has_value() || draws) return absl::OkStatus();
  return FieldError(field, absl::StrCat("is ", *seed,
                                        ", expected none: nothing in the memory of this model is "
                                        "drawn at random"));
}

absl::Status ValidateRequest(const Request& request, const RequestBounds& bounds) {
  const Request& r = request;
  MNEME_RETURN_IF_ERROR(CheckKind(r.classify, bounds.classes));
  if (r.classify) MNEME_RETURN_IF_ERROR(CheckText(r, bounds));
  if (!r.session.name.empty()) {
    MNEME_RETURN_IF_ERROR(ValidateSessionName(r.session.name, "session.name"));
  }
  if (!r.remember && r.session.name.empty()) {
    return FieldError("session.remember", "is false, and there is no session's name");
  }
  if (r.session_ttl < absl::ZeroDuration()) {
    return FieldError("session.ttl_ms", absl::StrCat("is ", absl::FormatDuration(r.session_ttl),
                                                     ", expected at least 0"));
  }
  MNEME_RETURN_IF_ERROR(CheckDurability(r.durability, bounds.stores_sessions));
  MNEME_RETURN_IF_ERROR(CheckMemorySeed("session.memory_seed", r.memory_seed, bounds.draws_memory));
  MNEME_RETURN_IF_ERROR(ValidateSampling(r.sampling, bounds.vocab));
  MNEME_RETURN_IF_ERROR(ValidateStop(r.stop, bounds.vocab, bounds.has_tokenizer));
  MNEME_RETURN_IF_ERROR(CheckSomethingIsLeftToDraw(r, bounds));
  MNEME_RETURN_IF_ERROR(CheckPrompt(r.prompt.at_start, bounds.vocab));
  MNEME_RETURN_IF_ERROR(CheckPrompt(r.prompt.continued, bounds.vocab));
  MNEME_RETURN_IF_ERROR(CheckLengths(r, bounds));
  MNEME_RETURN_IF_ERROR(CheckRange("response.n", r.n, 1, kMaxChoices));
  if (r.n > bounds.max_sessions) {
    return FieldError("response.n",
                      absl::StrCat("is ", r.n, ", expected at most ", bounds.max_sessions,
                                   ", the sessions this server has room for"));
  }
  if (r.logprobs != -1) MNEME_RETURN_IF_ERROR(CheckLogprobs("response.logprobs", r.logprobs));
  if (r.prompt_logprobs != -1) {
    MNEME_RETURN_IF_ERROR(CheckLogprobs("response.prompt_logprobs", r.prompt_logprobs));
  }
  if (r.surprise && !bounds.has_surprise) {
    return FieldError("response.surprise",
                      "is true, expected false: no memory of this model is trained as it reads");
  }
  if (r.memory_use && !bounds.has_engrams) {
    return FieldError("response.memory_use",
                      "is true, expected false: this model makes no engrams");
  }
  MNEME_RETURN_IF_ERROR(CheckPrefixCache(r));
  if (r.expected_position.has_value() && *r.expected_position < 0) {
    return FieldError("expected_position",
                      absl::StrCat("is ", *r.expected_position, ", expected at least 0"));
  }
  if (r.idempotency_key.size() > kMaxIdempotencyKeyBytes) {
    return FieldError("idempotency_key",
                      absl::StrCat("has ", r.idempotency_key.size(), " bytes, expected at most ",
                                   kMaxIdempotencyKeyBytes));
  }
  return CheckRange("priority", r.priority, -kMaxPriority, kMaxPriority);
}

uint64_t RequestDigest(const Request& request) {
  const Request& r = request;
  const SamplingParams& s = r.sampling;
  RecordWriter out;
  const auto text = [&](absl::string_view value) { out.Bytes(value); };
  const auto number = [&](int64_t value) { out.Signed(value); };
  const auto real = [&](double value) { out.Fixed64(std::bit_cast<uint64_t>(value)); };
  const auto tokens = [&](const std::vector<int32_t>& list) {
    out.Varint(list.size());
    for (const int32_t token : list) out.Signed(token);
  };
  text(r.session.owner);
  text(r.session.name);
  number(r.create_session);
  number(r.replaces_lost);
  number(r.durability.has_value() ? static_cast<int64_t>(*r.durability) : -1);
  real(absl::ToDoubleSeconds(r.session_ttl));
  number(r.whole_history);
  tokens(r.prompt.at_start);
  tokens(r.prompt.continued);
  for (const float value : {s.temperature, s.top_p, s.min_p, s.repetition_penalty,
                            s.presence_penalty, s.frequency_penalty}) {
    real(static_cast<double>(value));
  }
  number(s.top_k);
  out.Varint(s.logit_bias.size());
  for (const auto& [token, bias] : s.logit_bias) {
    number(token);
    real(static_cast<double>(bias));
  }
  number(s.seed.has_value());
  out.Fixed64(s.seed.value_or(0));
  for (const int value :
       {r.stop.max_tokens, r.stop.min_tokens, int{r.stop.ignore_eos},
        int{r.stop.include_stop_in_output}, r.n, r.logprobs, r.prompt_logprobs, int{r.echo},
        int{r.skip_special_tokens}, int{r.surprise}, int{r.memory_use}}) {
    number(value);
  }
  tokens(r.stop.stop_token_ids);
  out.Varint(r.stop.stop_strings.size());
  for (const std::string& one : r.stop.stop_strings) text(one);
  number(r.expected_position.value_or(-1));
  if (!r.remember) text("forgets");
  if (r.memory_seed.has_value()) {
    text("memory_seed");
    out.Fixed64(*r.memory_seed);
  }
  return HashText(std::move(out).Values());
}

}  // namespace mneme
