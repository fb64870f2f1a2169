#include "server/openai/openai_json.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"

namespace mneme {
namespace {

Json LogprobJson(float logprob) { return std::isnan(logprob) ? Json() : Json(logprob); }

int64_t Characters(absl::string_view text) {
  int64_t count = 0;
  for (const char c : text) count += (c & 0xc0) != 0x80 ? 1 : 0;
  return count;
}

// The bytes a token stands for: of a part of a character, other than its text here.
Json BytesJson(const AnswerFacts& facts, int32_t token, absl::string_view text) {
  std::string bytes(text);
  if (facts.tokenizer != nullptr && facts.tokenizer->contains(token) &&
      facts.tokenizer->entry(token).kind == TokenKind::kBytes) {
    bytes = facts.tokenizer->entry(token).text;
  }
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<uint8_t>(c));
  return list;
}

// {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
Json CompletionLogprobs(const AnswerFacts& facts, AnswerChoice& choice) {
  Json tokens = Json::array();
  Json values = Json::array();
  Json tops = Json::array();
  Json offsets = Json::array();
  for (const TokenLogprob& entry : choice.logprobs) {
    const std::string text = SanitizeUtf8(entry.text);
    tokens.push_back(text);
    values.push_back(LogprobJson(entry.logprob));
    offsets.push_back(choice.text_offset);
    choice.text_offset += Characters(text);
    if (std::isnan(entry.logprob)) {
      tops.push_back(nullptr);
      continue;
    }
    Json top = Json::object();
    for (const TopLogprob& other : entry.top) {
      // Two tokens may stand for the same text; the more likely one comes first.
      const std::string other_text = SanitizeUtf8(other.text);
      if (!top.contains(other_text)) top[other_text] = other.logprob;
    }
    if (facts.logprobs > 0 && !top.contains(text)) top[text] = entry.logprob;
    tops.push_back(std::move(top));
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(values)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

Json ChatLogprobs(const AnswerFacts& facts, const AnswerChoice& choice) {
  Json content = Json::array();
  for (const TokenLogprob& entry : choice.logprobs) {
    Json top = Json::array();
    for (const TopLogprob& other : entry.top) {
      top.push_back({{"token", SanitizeUtf8(other.text)},
                     {"logprob", LogprobJson(other.logprob)},
                     {"bytes", BytesJson(facts, other.token, other.text)}});
    }
    content.push_back({{"token", SanitizeUtf8(entry.text)},
                       {"logprob", LogprobJson(entry.logprob)},
                       {"bytes", BytesJson(facts, entry.token, entry.text)},
                       {"top_logprobs", std::move(top)}});
  }
  return {{"content", std::move(content)}};
}

Json FinishJson(FinishReason finish) {
  switch (finish) {
    case FinishReason::kNone:
      return nullptr;
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    default:
      return "error";
  }
}

// vLLM's addition: which stop string or token it was.
Json StopReasonJson(const AnswerFacts& facts, const AnswerChoice& choice) {
  if (choice.finish != FinishReason::kStop || choice.stop_matched.empty()) return nullptr;
  if (!choice.stop_token.has_value()) return SanitizeUtf8(choice.stop_matched);
  // The model's own end is no reason worth naming.
  if (facts.tokenizer != nullptr && facts.tokenizer->eos_id() == choice.stop_token) return nullptr;
  return *choice.stop_token;
}

Json MemoryUseJson(const MemoryUse& use) {
  Json sources = Json::array();
  for (const MemoryUse::Source& source : use.sources) {
    sources.push_back({{"segment", source.segment},
                       {"first_token", source.first_token},
                       {"end_token", source.end_token},
                       {"kind", source.long_term ? "long_term" : "short_term"},
                       {"engrams", source.engrams},
                       {"weight", source.weight}});
  }
  return {{"sources", std::move(sources)}, {"evictions", use.evictions}};
}

}  // namespace

Json UsageJson(const AnswerUsage& usage) {
  Json json = {{"prompt_tokens", usage.prompt_tokens},
               {"completion_tokens", usage.completion_tokens},
               {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
               {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
  if (usage.surprised_tokens > 0) {
    json["surprise"] = usage.surprise_sum / static_cast<double>(usage.surprised_tokens);
  }
  if (usage.memory_evicted) json["memory_evicted"] = true;
  for (const MemoryUse& use : usage.memory_use) {
    if (usage.memory_use.size() == 1) {
      json["memory_use"] = MemoryUseJson(use);
    } else {
      json["memory_use"].push_back(MemoryUseJson(use));
    }
  }
  return json;
}

Json ChoiceJson(const AnswerFacts& facts, int index, AnswerChoice& choice, bool is_first_chunk) {
  Json json = {{"index", index}};
  Json logprobs;
  if (facts.kind == OpenAiKind::kCompletion) {
    json["text"] = choice.text;
    if (facts.logprobs >= 0) logprobs = CompletionLogprobs(facts, choice);
  } else {
    if (!facts.stream) {
      json["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
    } else {
      Json delta = Json::object();
      if (is_first_chunk) delta["role"] = "assistant";
      if (is_first_chunk || !choice.text.empty()) delta["content"] = choice.text;
      json["delta"] = std::move(delta);
    }
    if (facts.logprobs >= 0 && !choice.logprobs.empty()) logprobs = ChatLogprobs(facts, choice);
  }
  json["logprobs"] = std::move(logprobs);
  json["finish_reason"] = FinishJson(choice.finish);
  json["stop_reason"] = StopReasonJson(facts, choice);
  if (choice.context_full) json["context_full"] = true;
  return json;
}

Json EnvelopeJson(const AnswerFacts& facts, Json choices) {
  const bool is_chat = facts.kind == OpenAiKind::kChat;
  return {{"id", facts.id},
          {"object", !is_chat       ? "text_completion"
                     : facts.stream ? "chat.completion.chunk"
                                    : "chat.completion"},
          {"created", facts.created},
          {"model", facts.model},
          {"system_fingerprint", facts.fingerprint},
          {"choices", std::move(choices)}};
}

}  // namespace mneme
