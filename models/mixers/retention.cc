// The token at position p, per head h:
//   q, k = rope(map(Wq x), p), rope(map(Wk x), p);   v = Wv x
//   S <- (1 - 2^(-5 - h)) S + v k^T;   o = S q / sqrt(key_dim)
//   out = Wo concat( RmsNorm_head(o) * silu(Wg x) )

#include "models/mixers/retention.h"

#include <cmath>
#include <vector>

#include "base/status_macros.h"
#include "models/mixers/entry_streams.h"
#include "models/mixers/memory_fields.h"
#include "models/mixers/memory_output.h"
#include "models/mixers/pending_fields.h"
#include "models/mixers/rope_frequencies.h"

namespace mneme {
namespace {

constexpr double kRopeBase = 10000;  // upstream's, which no configuration sets

std::vector<float> LogDecays(int heads) {
  std::vector<float> log_decays(static_cast<size_t>(heads));
  for (int h = 0; h < heads; ++h) {
    log_decays[h] = static_cast<float>(std::log1p(-std::exp2(-5.0 - h)));
  }
  return log_decays;
}

class Retention final : public SequenceMixer {
 public:
  static absl::StatusOr<std::unique_ptr<SequenceMixer>> Make(const LayerBuilder& builder,
                                                             const RetentionConfig& config) {
    const int model_dim = builder.model_dim, values = config.heads * config.value_dim;
    const StreamOptions mapped = {.activation = ActivationOf(config.key_map)};
    auto mixer = std::make_unique<Retention>();
    mixer->config_ = config;
    if (config.heads == config.kv_heads) {
      mixer->pending_ = PendingFields::Of(builder, kRule, config.key_dim, config.value_dim);
    }
    const MemoryFields fields(builder, /*routing=*/{});
    EntryStreams& streams = mixer->streams_;
    MNEME_RETURN_IF_ERROR(streams.Add(
        fields, TakeProjection(builder, "attn.q_proj", config.heads * config.key_dim, model_dim),
        mapped));
    MNEME_RETURN_IF_ERROR(streams.Add(
        fields, TakeProjection(builder, "attn.k_proj", config.kv_heads * config.key_dim, model_dim),
        mapped));
    MNEME_RETURN_IF_ERROR(streams.Add(
        fields,
        TakeProjection(builder, "attn.v_proj", config.kv_heads * config.value_dim, model_dim)));
    if (config.output_gate) {
      MNEME_RETURN_IF_ERROR(streams.Add(
          fields, TakeProjection(builder, "attn.g_proj", values, model_dim), {.by_token = true}));
    }
    MNEME_ASSIGN_OR_RETURN(mixer->frequencies_,
                           builder.weights().Constant(RopeFrequencies(kRopeBase, config.key_dim)));
    MNEME_ASSIGN_OR_RETURN(mixer->log_decay_, builder.weights().Constant(LogDecays(config.heads)));
    mixer->memory_ = fields.AddMatrices("memory", config.heads, config.value_dim, config.key_dim);
    mixer->pending_.Add(builder, mixer->memory_,
                        {.heads = config.heads,
                         .key_dim = config.key_dim,
                         .value_heads = config.heads,
                         .value_dim = config.value_dim});
    MNEME_ASSIGN_OR_RETURN(
        mixer->output_,
        MemoryOutput::Make(builder,
                           {.norm = EitherNorm(builder, "attn.g_norm_swish_gate", "attn.g_norm"),
                            .affine = config.norm_affine,
                            .eps = builder.norm_eps,
                            .heads = config.heads,
                            .dim = config.value_dim}));
    return mixer;
  }

  bool uses_row_index() const override { return true; }

  void Settle(ForwardContext& ctx, const TensorView& slots) const override {
    pending_.Settle(ctx, slots, memory_, /*written=*/{});
  }

  void Forward(ForwardContext& ctx, const Norm& norm, TensorView hidden) const override {
    const Workspace::Scope scope(ctx.workspace);
    const StepEntries entries = EnterRows(ctx, norm, hidden, streams_.products());
    MemoryStreams streams = streams_.Project(ctx, entries);
    const auto turned = [&](int stream, int heads) {
      return streams.Rope(
          stream, heads, {.positions = ctx.row_index.token_positions, .frequencies = frequencies_});
    };
    const TensorView read = ctx.Temp({entries.count, config_.heads, config_.value_dim});
    const MatrixMemoryArgs rule = {.rule = kRule,
                                   .q = turned(kQ, config_.heads),
                                   .k = turned(kK, config_.kv_heads),
                                   .v = ByHead(streams[kV], config_.kv_heads),
                                   .log_decay = log_decay_,
                                   .scale = 1.0f / std::sqrt(static_cast<float>(config_.key_dim)),
                                   .segments = entries.segments,
                                   .state = ctx.State(memory_),
                                   .pending = pending_.View(ctx.slabs),
                                   .out = read};
    streams.Run(ctx, rule);
    output_.Emit(ctx, entries, Flat(read), config_.output_gate ? streams[kGate] : TensorView{},
                 hidden);
  }

 private:
  static constexpr MatrixRule kRule = {.decay = MatrixRule::Decay::kConstant,
                                       .correction = MatrixRule::Correction::kNone};
  enum { kQ, kK, kV, kGate };

  RetentionConfig config_;
  EntryStreams streams_;
  TensorView frequencies_;  // [key_dim / 2] f32
  TensorView log_decay_;    // [heads] f32
  StateField memory_;
  PendingFields pending_;
  MemoryOutput output_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeRetention(const LayerBuilder& builder,
                                                             const RetentionConfig& config) {
  return Retention::Make(builder, config);
}

}  // namespace mneme
