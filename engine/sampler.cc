#include "engine/sampler.h"

#include <algorithm>
#include <limits>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/number_text.h"
#include "base/status_macros.h"
#include "engine/status_payload.h"

namespace mneme {
namespace {

absl::Status OutOfRange(absl::string_view field, absl::string_view value, absl::string_view range) {
  return FieldError(absl::StrCat("sampling.", field),
                    absl::StrCat("is ", value, ", expected ", range));
}

}  // namespace

// Comparisons are written so that NaN fails them.
absl::Status ValidateSampling(const SamplingParams& params, int vocab) {
  const SamplingParams& p = params;
  if (!(p.temperature >= 0 && p.temperature <= 100)) {
    return OutOfRange("temperature", NumberText(p.temperature), "0 (greedy) to 100");
  }
  if (p.top_k < 0) return OutOfRange("top_k", absl::StrCat(p.top_k), "at least 0 (off)");
  if (!(p.top_p > 0 && p.top_p <= 1)) {
    return OutOfRange("top_p", NumberText(p.top_p), "more than 0, at most 1 (off)");
  }
  if (!(p.min_p >= 0 && p.min_p <= 1))
    return OutOfRange("min_p", NumberText(p.min_p), "0 (off) to 1");
  if (!(p.repetition_penalty > 0 && p.repetition_penalty <= 10)) {
    return OutOfRange("repetition_penalty", NumberText(p.repetition_penalty),
                      "more than 0, at most 10");
  }
  if (!(p.presence_penalty >= -2 && p.presence_penalty <= 2)) {
    return OutOfRange("presence_penalty", NumberText(p.presence_penalty), "-2 to 2");
  }
  if (!(p.frequency_penalty >= -2 && p.frequency_penalty <= 2)) {
    return OutOfRange("frequency_penalty", NumberText(p.frequency_penalty), "-2 to 2");
  }
  if (p.logit_bias.size() > kMaxLogitBiases) {
    return FieldError(
        "sampling.logit_bias",
        absl::StrCat("has ", p.logit_bias.size(), " entries, expected at most ", kMaxLogitBiases));
  }
  absl::flat_hash_set<int32_t> seen;
  for (const auto& [token, bias] : p.logit_bias) {
    if (token < 0 || token >= vocab) {
      return FieldError("sampling.logit_bias",
                        absl::StrCat("names token ", token, ", expected 0 to ", vocab - 1));
    }
    if (!(bias >= -100 && bias <= 100)) {
      return FieldError(
          "sampling.logit_bias",
          absl::StrCat("of token ", token, " is ", NumberText(bias), ", expected -100 to 100"));
    }
    if (!seen.insert(token).second) {
      return FieldError("sampling.logit_bias", absl::StrCat("names token ", token, " twice"));
    }
  }
  return absl::OkStatus();
}

void SamplingBatch::Clear() {
  rows.clear();
  history.clear();
  bias.clear();
  max_top_logprobs = 0;
}

Sampler::Sampler(const SamplingParams& params, uint64_t seed, std::span<const int32_t> stop_tokens,
                 int logprobs, int prompt_logprobs) {
  draw_.temperature = params.temperature;
  draw_.top_p = params.top_p;
  draw_.min_p = params.min_p;
  draw_.top_k = params.top_k;
  draw_.repetition_penalty = params.repetition_penalty;
  draw_.presence_penalty = params.presence_penalty;
  draw_.frequency_penalty = params.frequency_penalty;
  draw_.top_logprobs = logprobs;
  draw_.seed = seed;
  score_.top_logprobs = prompt_logprobs;
  penalises_ = params.repetition_penalty != 1 || params.presence_penalty != 0 ||
               params.frequency_penalty != 0;
  if (stop_tokens.size() <= kMaxRowEndTokens) {
    std::copy(stop_tokens.begin(), stop_tokens.end(), draw_.end_tokens);
    draws_ahead_ = !penalises_;
  }

  constexpr float kNever = -std::numeric_limits<float>::infinity();
  for (const auto& [token, bias] : params.logit_bias) {
    bias_.push_back({token, bias <= kBanBias ? kNever : bias});
  }
  const absl::flat_hash_set<int32_t> bans(stop_tokens.begin(), stop_tokens.end());
  for (const BiasToken& entry : bias_) {
    if (!bans.contains(entry.token)) bias_and_bans_.push_back(entry);
  }
  for (const int32_t token : bans) bias_and_bans_.push_back({token, kNever});
}

void Sampler::AppendDraw(TokenHistory& history, int choice, int64_t position, bool ban,
                         SamplingBatch& batch) const {
  SamplingRow row = draw_;
  row.choice = static_cast<uint32_t>(choice);
  row.position = position;
  row.history_begin = static_cast<int32_t>(batch.history.size());
  if (penalises_) history.AppendDistinct(batch.history);
  row.history_end = static_cast<int32_t>(batch.history.size());
  row.bias_begin = static_cast<int32_t>(batch.bias.size());
  const std::vector<BiasToken>& bias = ban ? bias_and_bans_ : bias_;
  batch.bias.insert(batch.bias.end(), bias.begin(), bias.end());
  row.bias_end = static_cast<int32_t>(batch.bias.size());
  Append(row, batch);
}

void Sampler::AppendScore(int32_t token, SamplingBatch& batch) const {
  SamplingRow row = score_;
  row.forced_token = token;
  Append(row, batch);
}

void Sampler::Append(const SamplingRow& row, SamplingBatch& batch) const {
  batch.max_top_logprobs = std::max(batch.max_top_logprobs, row.top_logprobs);
  batch.rows.push_back(row);
}

}  // namespace mneme
