#include "clients/cli/request_flags.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace mneme::cli {
namespace {

// "12:-100,15:2.5"
absl::Status ParseLogitBias(absl::string_view text, v1::SamplingOptions& sampling) {
  for (const absl::string_view entry : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(entry, ':');
    int32_t token;
    float bias;
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &token) ||
        !absl::SimpleAtof(parts[1], &bias)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", entry, "\" is not TOKEN:BIAS, as in 12:-100"));
    }
    (*sampling.mutable_logit_bias())[token] = bias;
  }
  return absl::OkStatus();
}

absl::Status ParseTokenList(absl::string_view text, google::protobuf::RepeatedField<int32_t>& out) {
  for (const absl::string_view entry :
       absl::StrSplit(text, absl::ByAnyChar(", \t\n"), absl::SkipEmpty())) {
    int32_t token;
    if (!absl::SimpleAtoi(entry, &token)) {
      return absl::InvalidArgumentError(absl::StrCat("\"", entry, "\" is not a token id"));
    }
    out.Add(token);
  }
  return absl::OkStatus();
}

}  // namespace

void AddSamplingFlags(FlagSet& flags, v1::GenerateRequest& request) {
  v1::SamplingOptions* sampling = request.mutable_sampling();
  v1::StoppingOptions* stopping = request.mutable_stopping();
  flags.Integer("max-tokens", "Tokens to generate, per choice.",
                [=](int64_t value) { stopping->set_max_tokens(static_cast<int>(value)); });
  flags.Alias("-n");
  flags.Number("temperature", "0 is greedy; default 1, or what the model suggests.",
               [=](double value) { sampling->set_temperature(static_cast<float>(value)); });
  flags.Integer("top-k", "Only the k most likely tokens.",
                [=](int64_t value) { sampling->set_top_k(static_cast<int>(value)); });
  flags.Number("top-p", "Only the most likely tokens that together have this probability.",
               [=](double value) { sampling->set_top_p(static_cast<float>(value)); });
  flags.Number("min-p", "Only tokens this fraction as likely as the most likely one.",
               [=](double value) { sampling->set_min_p(static_cast<float>(value)); });
  flags.Number("repetition-penalty", "More than 1 discourages tokens already seen.",
               [=](double value) { sampling->set_repetition_penalty(static_cast<float>(value)); });
  flags.Number("presence-penalty", "Subtracted from logits of generated tokens.",
               [=](double value) { sampling->set_presence_penalty(static_cast<float>(value)); });
  flags.Number("frequency-penalty", "The same, per occurrence.",
               [=](double value) { sampling->set_frequency_penalty(static_cast<float>(value)); });
  flags.Add("logit-bias", "ID:BIAS,...", "Added to logits; -100 bans a token.",
            [=](absl::string_view text) { return ParseLogitBias(text, *sampling); });
  flags.Add("seed", "N", "The same seed gives the same text; default random.",
            [=](absl::string_view text) {
              uint64_t seed;
              if (!absl::SimpleAtoi(text, &seed)) {
                return absl::InvalidArgumentError(
                    absl::StrCat("\"", text, "\" is not a whole number from 0 on"));
              }
              sampling->set_seed(seed);
              return absl::OkStatus();
            });
  flags.String("stop", "TEXT", "Text that ends the answer; may be given several times.",
               [=](std::string value) { stopping->add_stop_strings(std::move(value)); });
  flags.Add("stop-token-ids", "ID,...", "Tokens that end the answer.", [=](absl::string_view text) {
    return ParseTokenList(text, *stopping->mutable_stop_token_ids());
  });
  flags.Integer("min-tokens", "No end before so many tokens.",
                [=](int64_t value) { stopping->set_min_tokens(static_cast<int>(value)); });
  flags.Bool("ignore-eos", "Go on after the model's end token.",
             [=](bool value) { stopping->set_ignore_eos(value); });
  flags.Bool("include-stop", "Show the text of --stop that matched.",
             [=](bool value) { stopping->set_include_stop_in_output(value); });
}

void AddReplaceLostFlag(FlagSet& flags, std::function<void(bool)> set) {
  flags.Bool(
      "replace-lost",
      "Begin a session anew that the server lost (SESSION_LOST), or go on with what is left.",
      std::move(set));
}

void AddDurabilityFlag(FlagSet& flags, std::function<void(v1::Durability)> set) {
  flags.Choice("durability", {"turn", "none"},
               "How the server stores the session, from its beginning: with each turn, or when it "
               "is put away.",
               [set = std::move(set)](const std::string& value) {
                 set(value == "turn" ? v1::DURABILITY_TURN : v1::DURABILITY_NONE);
               });
}

void AddMemorySeedFlag(FlagSet& flags, std::function<void(uint64_t)> set) {
  flags.Add("memory-seed", "N",
            "What a session that begins draws from, of a model that draws at random (Memoria); "
            "default the model's.",
            [set = std::move(set)](absl::string_view text) -> absl::Status {
              uint64_t seed;
              if (!absl::SimpleAtoi(text, &seed)) {
                return absl::InvalidArgumentError("expected an integer from 0 to 2^64 - 1");
              }
              set(seed);
              return absl::OkStatus();
            });
}

void AddSessionFlags(FlagSet& flags, v1::GenerateRequest& request) {
  v1::GenerateRequest* r = &request;
  flags.Bool("remember", "On by default; --no-remember leaves the session as it is.",
             [=](bool value) { r->mutable_session()->set_remember(value); });
  AddReplaceLostFlag(flags, [=](bool value) { r->mutable_session()->set_replace_lost(value); });
  AddMemorySeedFlag(flags, [=](uint64_t seed) { r->mutable_session()->set_memory_seed(seed); });
  AddDurabilityFlag(flags,
                    [=](v1::Durability value) { r->mutable_session()->set_durability(value); });
}

void AddRequestFlags(FlagSet& flags, v1::GenerateRequest& request) {
  v1::GenerateRequest* r = &request;
  flags.String("session", "NAME", "Go on with this session; created if it is missing.",
               [=](std::string value) { r->mutable_session()->set_name(std::move(value)); });
  flags.Alias("-s");
  flags.Bool("create", "Create a missing session; --no-create makes that an error.",
             [=](bool value) { r->mutable_session()->set_create_if_missing(value); });
  flags.Bool("must-exist", "Go on with a session that is there, or refuse; as --no-create.",
             [=](bool value) { r->mutable_session()->set_must_exist(value); });
  AddSessionFlags(flags, request);
  flags.Time("ttl",
             "Idle time after which the session is deleted, created or not; of a server that "
             "stores sessions, put away, to come back when it is used.",
             [=](absl::Duration value) {
               r->mutable_session()->set_ttl_ms(absl::ToInt64Milliseconds(value));
             });
  flags.Add("token-ids", "ID,...", "The prompt as token ids instead of text.",
            [=](absl::string_view text) {
              return ParseTokenList(text, *r->mutable_token_ids()->mutable_ids());
            });
  flags.Bool("add-special-tokens", "Begin a new session with BOS; default as the model says.",
             [=](bool value) { r->set_add_special_tokens(value); });
  flags.Bool("parse-special",
             "Take special tokens that the prompt spells, such as </s>, for these tokens; on by "
             "default.",
             [=](bool value) { r->set_parse_special(value); });
  flags.Bool("skip-special-tokens", "Leave control tokens out of the text; on by default.",
             [=](bool value) { r->mutable_response()->set_skip_special_tokens(value); });
  flags.Bool("surprise",
             "Tell how surprising the memory found what it was fed (--stats, --json), of models "
             "whose memories are trained while they read.",
             [=](bool value) { r->mutable_response()->set_surprise(value); });
  flags.Bool("memory-use",
             "Tell which segments of the conversation the answer drew on (--stats, --json), of "
             "models that make engrams.",
             [=](bool value) { r->mutable_response()->set_memory_use(value); });
  flags.Bool("bypass-prefix-cache",
             "Compute the whole prompt, whatever the server has of others that begin so.",
             [=](bool value) { r->mutable_prefix_cache()->set_bypass(value); });
  flags.String("cache-salt", "TEXT", "Share the prompt's beginning with those of this salt alone.",
               [=](std::string value) { r->mutable_prefix_cache()->set_salt(std::move(value)); });
  flags.Integer("choices", "Answers to the same prompt (-n is --max-tokens).",
                [=](int64_t value) { r->mutable_response()->set_n(static_cast<int>(value)); });
  flags.Integer(
      "logprobs", "Log-probabilities of the tokens and the k most likely ones (--json).",
      [=](int64_t value) { r->mutable_response()->set_logprobs(static_cast<int>(value)); });
  flags.Integer("prompt-logprobs", "The same for the prompt (--json).", [=](int64_t value) {
    r->mutable_response()->set_prompt_logprobs(static_cast<int>(value));
  });
  flags.Bool("echo", "Print the prompt first.",
             [=](bool value) { r->mutable_response()->set_echo(value); });
  flags.Add(
      "expected-position", "N", "Refuse unless the session holds so many tokens.",
      [=](absl::string_view text) {
        int64_t position;
        if (!absl::SimpleAtoi(text, &position)) {
          return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not a whole number"));
        }
        r->set_expected_position(position);
        return absl::OkStatus();
      });
  flags.String("idempotency-key", "KEY", "Makes repeating the command safe.",
               [=](std::string value) { r->set_idempotency_key(std::move(value)); });
  flags.String("request-id", "ID", "Names the request in the server's log.",
               [=](std::string value) { r->set_request_id(std::move(value)); });
  flags.Integer("priority",
                "Larger goes first among waiting requests; above 0 where the server lets the key.",
                [=](int64_t value) { r->set_priority(static_cast<int>(value)); });
  flags.Bool("detached", "Let the server finish even if this command is interrupted.",
             [=](bool value) { r->set_detached(value); });
  flags.String("model", "NAME", "Refuse to run with another model than this.",
               [=](std::string value) { r->set_model(std::move(value)); });
}

}  // namespace mneme::cli
