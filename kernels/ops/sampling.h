// Choosing tokens of logits. kernels/kernels.h has the conventions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>

#include "kernels/tensor_view.h"

namespace mneme {

constexpr int kMaxRowEndTokens = 4;

// Logits are divided by no less than these: quotients of any finite logits then stay far from the
// ends of a float64, and a device that flushes subnormal numbers, which would divide by zero,
// agrees with one that does not.
constexpr float kLeastTemperature = 1e-6f;  // below it: 0, greedy
constexpr float kLeastRepetitionPenalty = 1e-6f;

// These stand in the place of a token where none can be drawn.
constexpr int32_t kNoLogits = -1;     // the row's own logits, as they came, have no finite largest
constexpr int32_t kNothingLeft = -2;  // they have; but bias and penalties left none

// Parameters of one sampled row. Plain data, uploaded as an array.
//
// The distribution is computed in this order, on a copy of the row's logits:
//   1. logit += bias, from the list; -inf bans a token
//   2. for every history token (repetition: CTRL, arXiv:1909.05858)
//        logit = logit > 0 ? logit / repetition_penalty : logit * repetition_penalty
//        (kLeastRepetitionPenalty, if it is less)
//        logit -= presence_penalty * [count > 0] + frequency_penalty * count     count = generated
//   3. temperature below kLeastTemperature: the largest logit wins, ties to the lower id.
//      Otherwise p = softmax(logits / temperature), in descending order, ties: lower id first.
//   4. top_k: the first k stay (0: all)
//      top_p: of these, the shortest prefix with at least the fraction top_p of their mass stays,
//             never less than one token
//      min_p: of these, p < min_p * (largest p) go
//   5. the draw: the first token at which the sum of the p that stayed, divided by their total,
//      exceeds UniformDouble(seed, choice, position), base/random.h
//
// Logits from step 1 on, probabilities and their sums are float64 in every backend, so that equal
// logits give equal tokens. A token whose logit is -inf or NaN after step 2 is never drawn; if
// there is no token that may be drawn, or the largest logit is +inf, the result is kNoLogits or
// kNothingLeft. Finite parameters of any size make no finite logit infinite. Reported
// log-probabilities are those of the unmodified logits: log softmax before step 1. A row has none,
// as if they were not asked for, where the result is no token, and where a logit is NaN or +inf or
// all are -inf: a sum that leaves such logits out would make the others look certain.
struct SamplingRow {
  float temperature = 1.0f;
  float top_p = 1.0f;
  float min_p = 0.0f;
  int32_t top_k = 0;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  int32_t history_begin = 0, history_end = 0;  // into history: distinct tokens
  int32_t bias_begin = 0, bias_end = 0;        // into bias: distinct tokens
  int32_t top_logprobs = -1;  // -1: none; 0: the chosen token's only; n: also the n most likely
  int32_t forced_token = -1;  // >= 0: no draw, report this token's log-probability (prompt scoring)
  uint32_t choice = 0;        // index among n parallel generations
  uint64_t seed = 0;
  int64_t position = 0;  // number of tokens fed before this one is chosen
  // Tokens that end the row, -1 for none: see SampleArgs::next_slots and next_positions.
  int32_t end_tokens[kMaxRowEndTokens] = {-1, -1, -1, -1};

  bool EndsWith(int32_t token) const {
    return token < 0 || std::ranges::find(end_tokens, token) != std::end(end_tokens);
  }
  bool IsGreedy() const { return temperature < kLeastTemperature; }
  // The same row with parameters as they act. To be called where subnormal numbers count.
  SamplingRow Bounded() const {
    SamplingRow row = *this;
    if (IsGreedy()) row.temperature = 0;
    row.repetition_penalty = std::max(repetition_penalty, kLeastRepetitionPenalty);
    return row;
  }
};
struct HistoryToken {
  int32_t token;
  int32_t generated_count;  // 0: seen in a prompt only
};
struct BiasToken {
  int32_t token;
  float bias;
};

struct SampleArgs {
  TensorView logits;                  // [rows, vocab] act, not modified
  std::span<const SamplingRow> rows;  // host memory, as the two lists
  std::span<const HistoryToken> history;
  std::span<const BiasToken> bias;
  int max_top_logprobs = 0;  // columns of the two last outputs
  // Outputs, host memory, one per row.
  std::span<int32_t> tokens;
  std::span<float> logprobs;  // of the chosen (or forced) token; NaN if not asked for, or none
  // [rows, max_top_logprobs], most likely first, ties to the lower id. Past the row's top_logprobs
  // or the vocabulary: -1 and NaN.
  std::span<int32_t> top_tokens;
  std::span<float> top_logprobs;
  // Outputs, device memory, [rows] or all empty: the rows of the step that follows, each feeding
  // one token, so that it can begin before the host has seen what was drawn.
  //   next_tokens     i32  = tokens[r], or 0 for none
  //   next_slots      i32  stays what it is, or becomes -1 where rows[r].EndsWith(tokens[r])
  //   next_positions  i64  grows by one, for the token of the step that drew, or stays what it is
  //                        where rows[r].EndsWith(tokens[r])
  TensorView next_tokens, next_slots, next_positions;

  // These three, for backends whose memory is the host's; CUDA's is
  // kernels/cuda/sampling/next_inputs.cuh.
  void WriteNextInputs() const {
    if (next_tokens.data == nullptr) return;
    for (size_t r = 0; r < rows.size(); ++r) {
      next_tokens.as<int32_t>()[r] = std::max(tokens[r], 0);
      if (rows[r].EndsWith(tokens[r])) {
        next_slots.as<int32_t>()[r] = -1;
      } else {
        ++next_positions.as<int64_t>()[r];
      }
    }
  }
};

// logits[r][tokens[i]] = -inf: these are never drawn, and take no part in probabilities.
struct BanTokensArgs {
  TensorView logits;  // [rows, vocab] act
  TensorView tokens;  // [n] i32, each in [0, vocab)
};

class SamplingKernels {
 public:
  virtual ~SamplingKernels() = default;

  virtual void BanTokens(const BanTokensArgs& args) = 0;
  // Blocks until the sampled tokens are on the host: the one synchronising operation, once a step.
  virtual void Sample(const SampleArgs& args) = 0;
  // The same in two parts, the second of which blocks. What lies between them may be launched while
  // the device is busy, another BeginSample, too: at most two are under way, and the first one that
  // was begun is finished first. The outputs have to stay until then, the inputs do not.
  virtual void BeginSample(const SampleArgs& args) { Sample(args); }
  virtual void FinishSample() {}
};

}  // namespace mneme
