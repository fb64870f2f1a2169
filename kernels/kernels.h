// Every operation a model is made of, declared once: equation, source, shapes, aliasing. This page
// is the specification; a backend that lacks an operation does not compile. The reference backend
// (float64, one token at a time) is its executable form.
//
// Conventions
//   * Activations, "act" below, have the backend's activation dtype: f64 in the reference backend,
//     else f32. Index tensors are i32. Tensors are row-major and lie in backend memory.
//   * Rows are ragged: row r of a step owns tokens [row_offsets[r], row_offsets[r+1]) and the slab
//     slots[r]; a slot occurs in one row of a step only. A row or segment with slot < 0 is padding:
//     its state is neither read nor written, and what its tokens' outputs hold is unspecified. An
//     empty row or segment leaves its state alone as well.
//   * How tokens are split over calls, and what else is in the call, must not change a result; on
//     the CPU not by one bit. Work is divided over outputs, never over a reduction.
//   * Operations return void: wrong shapes are our own bug. The reference and CPU backends
//     CHECK-fail on them; CUDA's checks little, and may compute nonsense. Outputs never alias
//     inputs unless a comment says so. Not thread-safe: one caller, the engine's loop thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>

#include "kernels/decode_step.h"
#include "kernels/pending_writes.h"
#include "kernels/tensor_view.h"

namespace mneme {

// y[t] = table[ids[t]]
struct EmbeddingArgs {
  TensorView ids;    // [tokens] i32, each in [0, vocab)
  TensorView table;  // [vocab, model_dim] f32, bf16 or f16
  TensorView y;      // [tokens, model_dim] act
};

// y[i] = x[indices[i]]
struct GatherRowsArgs {
  TensorView x;        // [rows, dim] act
  TensorView indices;  // [n] i32
  TensorView y;        // [n, dim] act
};

// y = x / sqrt(mean(x^2) + eps) * weight, over the last dimension.
struct RmsNormArgs {
  TensorView x;       // [tokens, dim] act
  TensorView weight;  // [dim] f32
  float eps = 1e-6f;
  TensorView y;  // [tokens, dim] act, may alias x; or as LinearArgs::x
};

// y[e] = W x[row(e)]  (+ y[e] if accumulate), for every entry e.
//
// Ungrouped (weights.size() == 1, group_offsets empty): row(e) = e, all entries use weights[0].
// Grouped: entries [group_offsets[g], group_offsets[g+1]) use weights[g], row(e) = entry_rows[e].
// Which tokens go through which memory is known on the device only, hence offsets by tensor.
//
// Every output is one sum over in_features whose order does not depend on the number of entries.
struct LinearArgs {
  TensorView x;                           // [rows, in_features] act, or Backend::product_dtype
  std::span<const PackedMatrix> weights;  // [groups], all of one shape and dtype
  TensorView entry_rows;                  // [entries] i32, or empty
  TensorView group_offsets;               // [groups + 1] i32, or empty
  TensorView y;                           // [entries, out_features] act, or Backend::output_dtype
  bool accumulate = false;
};

// y = silu(gate) * up, silu(z) = z / (1 + exp(-z)).
struct SwiGluArgs {
  TensorView gate;  // [tokens, dim] act
  TensorView up;    // [tokens, dim] act
  TensorView y;     // [tokens, dim] act, may alias gate or up; or as LinearArgs::x
};

// Linear with `gate` and with `up`, and SwiGlu of what comes out, as one operation. It is fused,
// and a backend may do without.
struct SwiGluProductArgs {
  TensorView x;           // [rows, in_features] as LinearArgs::x
  PackedMatrix gate, up;  // [dim, in_features]
  TensorView y;           // [rows, dim] as SwiGluArgs::y
};

// Top-k routing, MoM (arXiv:2502.13685) eq. (3)-(4) as released:
//   p = softmax(logits) over all memories
//   indices = those of the top_k largest p, largest first, ties to the lower index
//   weights = their p, renormalised to sum 1
// Softmax is monotone, so the choice compares the (rounded) logits: a p that underflows to zero
// does not change it. Renormalising cancels the other memories: weights = softmax over the chosen
// logits. With `forced` the indices are given, in any order, and only the weights are computed.
// Indices are distinct and in range whatever the logits are, NaN included.
struct RouteTopKArgs {
  TensorView logits;  // [tokens, memories] act
  // kBF16: logits are rounded to bf16 first, as a bf16 model does.
  DType round_logits = DType::kF32;
  TensorView forced;   // [tokens, top_k] i32, or empty
  TensorView indices;  // [tokens, top_k] i32, out
  TensorView weights;  // [tokens, top_k] act, out
};

// Runs of entries that go, in order, through one memory of one slab.
// Segment s owns entries [offsets[s], offsets[s+1]), which may be empty.
struct Segments {
  int count = 0;
  TensorView offsets;   // [count + 1] i32
  TensorView slots;     // [count] i32, < 0: padding
  TensorView memories;  // [count] i32
  // [count] i32; 1: the memory was never written and reads as its initial value, zero. Only
  // segments that have entries may be fresh.
  TensorView fresh;
  // No segment has more entries than this. 0: not known. What a device chooses its kernels by,
  // since the offsets are known on the device only.
  int longest = 0;
  // No more segments than this have more than one entry. 0: not known.
  int longer = 0;
};

// Sorts a step's (token, memory) pairs into entries: by memory, then by row, then in token order.
// So a memory's projection sees one contiguous range, and its recurrence one segment per row:
// segment s = memory * rows + row. With `shared` every token also goes to one more memory, whose
// index is `memories`. Tokens of padding rows become entries too, in segments with slot < 0.
//
// `written` holds one u8 flag per memory in each slab (0 in a new slab). A segment that has entries
// and whose flag is 0 is fresh; the flag is then set to 1. So a new session needs no cleared
// matrices, only cleared flags.
struct DispatchArgs {
  TensorView row_offsets;  // [rows + 1] i32
  TensorView slots;        // [rows] i32
  TensorView indices;      // [tokens, top_k] i32 in [0, memories); empty if memories == 0
  int memories = 0;        // routed memories
  bool shared = false;
  StateView written;  // u8 per slab: [memories + shared]
  // Outputs; entries = tokens * (top_k + shared).
  TensorView entry_tokens;   // [entries] i32: the token of each entry
  TensorView token_entries;  // [tokens, top_k + shared] i32: the entry of each choice, shared last
  TensorView group_offsets;  // [memories + shared + 1] i32
  Segments segments;         // count = (memories + shared) * rows
};

constexpr int kMaxConvWidth = 16;

// Depthwise causal convolution of width `width`, at most kMaxConvWidth, followed by silu, along
// each segment:
//   y[e, c] = silu( sum_j weight[c, j] * x_{e - (width - 1) + j}[c] )
// where j = width - 1 is the newest value.
// History before the segment comes from the memory's window, [width - 1, channels], oldest first,
// which is then replaced by the last width - 1 raw inputs seen. fla: ShortConvolution.
struct ShortConvArgs {
  TensorView x;           // [rows, channels] act, or as LinearArgs::y
  TensorView entry_rows;  // [entries] i32: x row of each entry; empty: entry e reads row e
  TensorView weight;      // [channels, width] f32
  Segments segments;
  // Per memory: [width - 1, channels] of a StateFormat's window dtypes. kBF16: x is rounded to it.
  StateView window;
  TensorView y;  // [entries, channels] act; must not alias x
};

// Per head: y = scale * x / sqrt(sum(x^2) + eps).
struct L2NormArgs {
  TensorView x;  // [entries, heads, dim] act
  float scale = 1.0f;
  float eps = 1e-6f;
  TensorView y;  // same shape; may alias x
};

// Gates of the gated delta rule, per value head (arXiv:2412.06464, fla's parametrisation):
//   log_decay = -exp(A_log) * softplus(a + dt_bias)      softplus(z) = z for z > 20
//   beta      = beta_scale * sigmoid(b)                  beta_scale 2 allows negative eigenvalues
struct DeltaGatesArgs {
  TensorView a, b;            // [rows, heads] act
  TensorView a_log, dt_bias;  // [heads] f32
  TensorView entry_rows;      // [entries] i32: row of a and b for each entry; empty: row e
  float beta_scale = 1.0f;
  // [entries, heads] act, out; may alias a and b when entry_rows is empty.
  TensorView log_decay, beta;
};

// Gated delta rule: write v under key k, first erasing what the memory holds there. Per value head:
//
//   S <- exp(log_decay) S;   u = beta (v - S k);   S <- S + u k^T;   o = S q
//
// Yang, Kautz, Hatamizadeh, "Gated Delta Networks" (arXiv:2412.06464). S is [value_dim, key_dim],
// value first, so that both products are sums over contiguous memory. Value head j uses q and k of
// head j / (value_heads / heads).
struct GatedDeltaRuleArgs {
  TensorView q, k;             // [entries, heads, key_dim] act, normalised and scaled by the caller
  TensorView v;                // [entries, value_heads, value_dim] act
  TensorView log_decay, beta;  // [entries, value_heads] act
  Segments segments;
  // Per memory: [value_heads, value_dim, key_dim] of StateFormat::memory_dtype, its rows
  // StateRowPitch bytes apart; updated in place.
  StateView state;
  PendingWrites pending;
  TensorView out;  // [entries, value_heads, value_dim] act; may alias v
};

// All that a pass of tokens through gated-delta memories takes, as one operation: ShortConv of q, k
// and v, L2Norm of q and of k, DeltaGates, GatedDeltaRule. Like those of decode_step.h it is fused,
// and a backend may do without. Tensors that one part writes and the next one reads (q.y and
// rule.q, gates.beta and rule.beta) are the same memory; what they hold afterwards is unspecified.
struct DeltaMemoryPassArgs {
  ShortConvArgs q, k, v;  // all of rule.segments
  QueryKeyNorms norms;
  DeltaGatesArgs gates;
  GatedDeltaRuleArgs rule;
};

// Folds the pending writes of all memories of some slabs, so that the matrices alone are the state.
// Memories that were never written are left alone.
struct SettleArgs {
  TensorView slots;   // [n] i32, < 0: padding
  int memories = 0;   // of the field
  StateView written;  // as in DispatchArgs
  int heads = 0, key_dim = 0, value_heads = 0, value_dim = 0;
  StateView state;  // as in GatedDeltaRuleArgs
  PendingWrites pending;
};

// y[t] = sum_j weights[t, j] * x[token_entries[t, j]]  (+ x[token_entries[t, top_k]])
// The routed memories' outputs weighted, then the shared memory's, if token_entries has that
// column, with weight 1. Summed in column order.
struct MixMemoriesArgs {
  TensorView x;              // [entries, dim] act
  TensorView token_entries;  // [tokens, top_k + shared] i32
  TensorView weights;        // [tokens, top_k] act
  TensorView y;              // [tokens, dim] act
};

// Per head: y = x / sqrt(mean(x^2) + eps) * weight * silu(gate); no gate: the last factor is 1.
struct GatedRmsNormArgs {
  TensorView x;       // [tokens, heads, dim] act
  TensorView gate;    // [tokens, heads, dim] act, or as LinearArgs::y, or empty
  TensorView weight;  // [dim] f32, one for all heads
  float eps = 1e-6f;
  TensorView y;  // same shape as x, act, may alias x or gate; or as LinearArgs::x
};

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

class Kernels {
 public:
  virtual ~Kernels() = default;

  virtual void Embedding(const EmbeddingArgs& args) = 0;
  virtual void GatherRows(const GatherRowsArgs& args) = 0;
  virtual void RmsNorm(const RmsNormArgs& args) = 0;
  // Independent products, done as one parallel region. Outputs must not alias each other.
  virtual void Linear(std::span<const LinearArgs> products) = 0;
  virtual void SwiGlu(const SwiGluArgs& args) = 0;
  virtual void RouteTopK(const RouteTopKArgs& args) = 0;
  virtual void Dispatch(const DispatchArgs& args) = 0;
  // Independent convolutions over the same or different segments, done as one parallel region.
  virtual void ShortConv(std::span<const ShortConvArgs> convolutions) = 0;
  virtual void L2Norm(const L2NormArgs& args) = 0;
  virtual void DeltaGates(const DeltaGatesArgs& args) = 0;
  virtual void GatedDeltaRule(const GatedDeltaRuleArgs& args) = 0;
  virtual void SettleMemories(const SettleArgs& args) = 0;
  virtual void MixMemories(const MixMemoriesArgs& args) = 0;
  virtual void GatedRmsNorm(const GatedRmsNormArgs& args) = 0;
  virtual void BanTokens(const BanTokensArgs& args) = 0;
  // Blocks until the sampled tokens are on the host: the one synchronising operation, once a step.
  virtual void Sample(const SampleArgs& args) = 0;
  // The same in two parts, the second of which blocks. What lies between them may be launched while
  // the device is busy, another BeginSample, too: at most two are under way, and the first one that
  // was begun is finished first. The outputs have to stay until then, the inputs do not.
  virtual void BeginSample(const SampleArgs& args) { Sample(args); }
  virtual void FinishSample() {}

  // Fused operations. False: nothing was done, the caller composes the above.

  // RmsNorm, Linear of what it gives with `router`, and RouteTopK of those logits, which are not
  // written (route.logits is empty) and may be of y as it was before it was rounded.
  virtual bool NormAndRoute(const RmsNormArgs& /*norm*/, const PackedMatrix& /*router*/,
                            const RouteTopKArgs& /*route*/) {
    return false;
  }
  virtual bool SwiGluProduct(const SwiGluProductArgs&) { return false; }
  // MixMemories, and GatedRmsNorm of what comes out: norm.x is mix.y, which is not written.
  virtual bool MixAndNorm(const MixMemoriesArgs& /*mix*/, const GatedRmsNormArgs& /*norm*/) {
    return false;
  }
  virtual bool DeltaMemoryPass(const DeltaMemoryPassArgs&) { return false; }
  // decode_step.h
  virtual bool DeltaMixerStep(const DeltaMixerStepArgs&) { return false; }
  virtual bool FeedForwardStep(const FeedForwardStepArgs&) { return false; }
  // Consecutive layers, which have the same shapes, and, unless it is null, what follows them.
  virtual DecodeDone DecodeLayers(std::span<const DecodeLayerArgs>, const DecodeHeadArgs*) {
    return DecodeDone::kNothing;
  }
};

}  // namespace mneme
