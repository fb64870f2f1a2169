// Tokens and their probabilities as OpenAI's two endpoints write them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/request.h"
#include "server/openai/json_body.h"
#include "server/openai/openai_request.h"

namespace mneme {

// Facts that do not change from one chunk of an answer to the next.
struct AnswerFacts {
  OpenAiKind kind = OpenAiKind::kCompletion;
  BodyFields names;
  std::string id;  // "cmpl-..."
  int64_t created = 0;
  std::string model;
  std::string fingerprint;
  std::string session;  // empty: none
  int n = 1;            // choices of each prompt
  bool stream = false;
  bool include_usage = false;
  bool echo = false;
  int logprobs = -1;                     // as in Request
  const Tokenizer* tokenizer = nullptr;  // may be null
};

// A choice as it grows: all of it, or what came since the last chunk.
struct AnswerChoice {
  std::string text;
  std::vector<TokenLogprob> logprobs;
  FinishReason finish = FinishReason::kNone;
  std::string stop_matched;
  std::optional<int32_t> stop_token;  // where that is what matched
  bool context_full = false;          // the session's end, and not max_tokens, is its length
  int64_t tokens = 0;                 // sampled, of this and earlier chunks
  int64_t text_offset = 0;  // characters in front of `logprobs`, of this and earlier chunks
};

// Counts of an answer, all prompts together.
struct AnswerUsage {
  int64_t prompt_tokens = 0;  // cached and new ones, as OpenAI counts
  int64_t cached_tokens = 0;  // of sessions' states and of the prefix cache
  int64_t replayed_tokens = 0;
  int64_t completion_tokens = 0;
  // How the tokens fed surprised: the sum, and how many they are. 0: nobody asked.
  double surprise_sum = 0;
  int64_t surprised_tokens = 0;
  bool memory_evicted = false;
  std::vector<MemoryUse> memory_use;  // of each prompt; empty: nobody asked
};

Json UsageJson(const AnswerUsage& usage);

// An element of "choices". Moves `text_offset` on.
Json ChoiceJson(const AnswerFacts& facts, int index, AnswerChoice& choice, bool is_first_chunk);

// The object around "choices", without usage.
Json EnvelopeJson(const AnswerFacts& facts, Json choices);

}  // namespace mneme
