// Sampling parameters of requests -> arguments of the sampling operation (kernels.h, SamplingRow).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/request.h"
#include "engine/sessions/token_history.h"
#include "kernels/kernels.h"

namespace mneme {

inline constexpr int kMaxTopLogprobs = 20;
inline constexpr int kMaxLogitBiases = 1024;
inline constexpr float kBanBias = -100.0f;  // a logit_bias of this value means never

// INVALID_ARGUMENT, naming field, value and range; the field is a payload (status_payload.h).
absl::Status ValidateSampling(const SamplingParams& params, int vocab);

// The draws that one step asks of Kernels::Sample: a row for each of the plan's logit rows, in
// order.
struct SamplingBatch {
  std::vector<SamplingRow> rows;
  std::vector<HistoryToken> history;
  std::vector<BiasToken> bias;
  int max_top_logprobs = 0;

  void Clear();
};

// One request's parameters, prepared once.
class Sampler {
 public:
  Sampler() = default;
  // `seed` for all draws. `stop_tokens` end a choice, and cannot be drawn before min_tokens.
  // `logprobs` and `prompt_logprobs` as in Request.
  Sampler(const SamplingParams& params, uint64_t seed, std::span<const int32_t> stop_tokens,
          int logprobs, int prompt_logprobs);

  // A draw. `position` is the number of tokens fed before it; `ban` keeps stop tokens from being
  // drawn.
  void AppendDraw(TokenHistory& history, int choice, int64_t position, bool ban,
                  SamplingBatch& batch) const;
  // No draw: the log-probability of `token`, for a prompt.
  void AppendScore(int32_t token, SamplingBatch& batch) const;

  // Whether a draw can be asked for before the token that is fed ahead of it is known.
  bool draws_ahead() const { return draws_ahead_; }
  uint64_t seed() const { return draw_.seed; }

 private:
  void Append(const SamplingRow& row, SamplingBatch& batch) const;

  SamplingRow draw_;
  SamplingRow score_;
  bool penalises_ = false;
  bool draws_ahead_ = false;
  std::vector<BiasToken> bias_;
  std::vector<BiasToken> bias_and_bans_;
};

}  // namespace mneme
