// One token, per value head:
//   q, k = l2(silu(conv(Wq x))), l2(silu(conv(Wk x)));   v = silu(conv(Wv x))
//   g = -exp(A_log) softplus(F1 F0 x + dt_bias)             one for each key; with a bound c < 0:
//   g = c sigmoid( exp(A_log) (F1 F0 x + dt_bias) )
//   b = sigmoid(Wb x), twice that if eigenvalues may be negative
//   S <- S diag(exp g);   S <- S + b (v - S k) k^T;   o = S q / sqrt(key_dim)
//   out = Wo concat( RmsNorm_head(o) * sigmoid(G1 G0 x + c1) )

#include "models/mixers/kimi_delta_attention.h"

#include <cmath>

#include "base/status_macros.h"
#include "models/mixers/entry_streams.h"
#include "models/mixers/memory_fields.h"
#include "models/mixers/memory_output.h"
#include "models/mixers/pending_fields.h"

namespace mneme {
namespace {

// Upstream has written A_log in several shapes.
absl::StatusOr<TensorView> TakeRates(const LayerBuilder& builder, int value_heads) {
  const std::string name = builder.Weight("attn.A_log");
  Shape stored{value_heads};
  for (const Shape& shape : {Shape{1, 1, value_heads, 1}, Shape{1, 1, value_heads},
                             Shape{1, value_heads}, Shape{value_heads, 1}, Shape{value_heads}}) {
    if (builder.weights().HasShape(name, shape)) stored = shape;
  }
  MNEME_ASSIGN_OR_RETURN(TensorView rates,
                         builder.weights().Floats(name, stored, WeightInit::kDecay));
  rates.shape = {value_heads};
  return rates;
}

class KimiDeltaAttention final : public SequenceMixer {
 public:
  static absl::StatusOr<std::unique_ptr<SequenceMixer>> Make(
      const LayerBuilder& builder, const KimiDeltaAttentionConfig& config) {
    const int model_dim = builder.model_dim, width = config.conv_width;
    const int keys = config.heads * config.key_dim;
    const int values = config.value_heads * config.value_dim;
    const int decays = config.value_heads * config.key_dim, rank = config.value_dim;
    auto mixer = std::make_unique<KimiDeltaAttention>();
    mixer->config_ = config;
    if (config.heads == config.value_heads) {
      mixer->pending_ = PendingFields::Of(builder, kRule, config.key_dim, config.value_dim);
    }
    const MemoryFields fields(builder, /*routing=*/{});
    EntryStreams& streams = mixer->streams_;
    MNEME_RETURN_IF_ERROR(streams.Add(fields,
                                      TakeProjection(builder, "attn.q_proj", keys, model_dim),
                                      Convolved("q", width, Activation::kSilu)));
    MNEME_RETURN_IF_ERROR(streams.Add(fields,
                                      TakeProjection(builder, "attn.k_proj", keys, model_dim),
                                      Convolved("k", width, Activation::kSilu)));
    MNEME_RETURN_IF_ERROR(streams.Add(fields,
                                      TakeProjection(builder, "attn.v_proj", values, model_dim),
                                      Convolved("v", width, Activation::kSilu)));
    MNEME_ASSIGN_OR_RETURN(mixer->decay_, TakeProjection(builder, "attn.f_proj.1", decays, rank));
    MNEME_RETURN_IF_ERROR(streams.Add(fields,
                                      TakeProjection(builder, "attn.f_proj.0", rank, model_dim),
                                      {.factor_of = mixer->decay_.weights}));
    MNEME_RETURN_IF_ERROR(
        streams.Add(fields, TakeProjection(builder, "attn.b_proj", config.value_heads, model_dim),
                    {.activation = Activation::kSigmoid,
                     .scale = config.allow_negative_eigenvalues ? 2.0f : 1.0f}));
    MNEME_ASSIGN_OR_RETURN(mixer->gate_,
                           TakeProjection(builder, "attn.g_proj.1", values, rank, Bias::kAdded));
    MNEME_RETURN_IF_ERROR(streams.Add(fields,
                                      TakeProjection(builder, "attn.g_proj.0", rank, model_dim),
                                      {.factor_of = mixer->gate_.weights}));
    MNEME_ASSIGN_OR_RETURN(mixer->a_log_, TakeRates(builder, config.value_heads));
    MNEME_ASSIGN_OR_RETURN(
        mixer->dt_bias_,
        builder.weights().Floats(builder.Weight("attn.dt_bias"), {decays}, WeightInit::kTimeStep));
    mixer->dt_bias_.shape = {config.value_heads, config.key_dim};
    mixer->memory_ =
        fields.AddMatrices("memory", config.value_heads, config.value_dim, config.key_dim);
    mixer->pending_.Add(builder, mixer->memory_,
                        {.heads = config.value_heads,
                         .key_dim = config.key_dim,
                         .value_heads = config.value_heads,
                         .value_dim = config.value_dim,
                         .key_decays = true});
    MNEME_ASSIGN_OR_RETURN(mixer->output_,
                           MemoryOutput::Make(builder, {.norm = "attn.o_norm",
                                                        .eps = builder.norm_eps,
                                                        .heads = config.value_heads,
                                                        .dim = config.value_dim,
                                                        .gate = Activation::kSigmoid}));
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
    const TensorView rate = ctx.Temp({entries.count, decay_.out()});
    const TensorView gate = ctx.Temp({entries.count, gate_.out()});
    Project(ctx.kernels(), {{.projection = decay_, .x = streams[kDecayRank], .y = rate},
                            {.projection = gate_, .x = streams[kGateRank], .y = gate}});
    const TensorView log_decay = streams.DecayGates(
        streams.Add(rate), config_.value_heads,
        {.gate = config_.least_log_decay.has_value() ? DecayGate::kBounded : DecayGate::kSoftplus,
         .lower_bound = config_.least_log_decay.value_or(0),
         .a_log = a_log_,
         .dt_bias = dt_bias_});
    const TensorView read = ctx.Temp({entries.count, config_.value_heads, config_.value_dim});
    const MatrixMemoryArgs rule = {.rule = kRule,
                                   .q = streams.L2Norm(kQ, config_.heads),
                                   .k = streams.L2Norm(kK, config_.heads),
                                   .v = ByHead(streams[kV], config_.value_heads),
                                   .log_decay = log_decay,
                                   .beta = streams[kStrength],
                                   .scale = 1.0f / std::sqrt(static_cast<float>(config_.key_dim)),
                                   .segments = entries.segments,
                                   .state = ctx.State(memory_),
                                   .pending = pending_.View(ctx.slabs),
                                   .out = read};
    streams.Run(ctx, rule);
    output_.Emit(ctx, entries, Flat(read), gate, hidden);
  }

 private:
  static constexpr MatrixRule kRule = {.decay = MatrixRule::Decay::kKey,
                                       .correction = MatrixRule::Correction::kDelta};
  enum { kQ, kK, kV, kDecayRank, kStrength, kGateRank };

  KimiDeltaAttentionConfig config_;
  EntryStreams streams_;
  Projection decay_;    // F1: [value_heads * key_dim, value_dim]
  Projection gate_;     // G1: [value_heads * value_dim, value_dim], and c1
  TensorView a_log_;    // [value_heads] f32
  TensorView dt_bias_;  // [value_heads, key_dim] f32
  StateField memory_;
  PendingFields pending_;
  MemoryOutput output_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeKimiDeltaAttention(
    const LayerBuilder& builder, const KimiDeltaAttentionConfig& config) {
  return KimiDeltaAttention::Make(builder, config);
}

}  // namespace mneme
