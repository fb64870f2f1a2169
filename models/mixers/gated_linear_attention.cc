// One token of one memory, per head:
//   q, k, v = map(conv(Wq x)), map(conv(Wk x)), conv(Wv x)
//   d = exp( max( log sigmoid(W1 W0 x + b) / 16, least ) )                    one for each key
//   S <- S diag(d) + v k^T;   o = S q / sqrt(key_dim)
//   out = Wo concat( RmsNorm_head(o) * silu(Wg x) )

#include "models/mixers/gated_linear_attention.h"

#include <cmath>
#include <utility>

#include "base/status_macros.h"
#include "models/mixers/entry_streams.h"
#include "models/mixers/memory_fields.h"
#include "models/mixers/memory_output.h"
#include "models/mixers/pending_fields.h"

namespace mneme {
namespace {

// Upstream's, which no configuration sets.
constexpr int kDecayRank = 16;
constexpr float kDecayNormalizer = 16;

class GatedLinearAttention final : public SequenceMixer {
 public:
  static absl::StatusOr<std::unique_ptr<SequenceMixer>> Make(
      const LayerBuilder& builder, const GatedLinearAttentionConfig& config) {
    const RoutingConfig& routing = config.routing;
    const int model_dim = builder.model_dim;
    const int queries = config.heads * config.key_dim, keys = config.kv_heads * config.key_dim;
    const int values = config.kv_heads * config.value_dim;
    const Activation map = ActivationOf(config.key_map);
    auto mixer = std::make_unique<GatedLinearAttention>();
    mixer->config_ = config;
    MNEME_ASSIGN_OR_RETURN(mixer->router_, MemoryRouter::Make(builder, routing));
    if (!routing.routed() && config.heads == config.kv_heads) {
      mixer->pending_ = PendingFields::Of(builder, kRule, config.key_dim, config.value_dim);
    }
    const MemoryFields fields(builder, routing);
    mixer->written_ = fields.written();

    EntryStreams& streams = mixer->streams_;
    MNEME_RETURN_IF_ERROR(
        streams.Add(fields, TakeProjection(builder, "attn.q_proj", queries, model_dim),
                    {.name = "q", .conv_width = config.conv_width, .activation = map}));
    MNEME_RETURN_IF_ERROR(streams.Add(
        fields,
        TakeForMemories(builder, routing, {"attn.k_proj", "attn.shared_k"}, keys, model_dim),
        {.name = "k", .conv_width = config.conv_width, .activation = map}));
    MNEME_RETURN_IF_ERROR(streams.Add(
        fields,
        TakeForMemories(builder, routing, {"attn.v_proj", "attn.shared_v"}, values, model_dim),
        {.name = "v", .conv_width = config.conv_width}));
    MNEME_ASSIGN_OR_RETURN(
        mixer->decay_, TakeForMemories(builder, routing, {"attn.gk_proj", "attn.shared_gk", ".1"},
                                       keys, kDecayRank, Bias::kAdded));
    MNEME_RETURN_IF_ERROR(
        streams.Add(fields,
                    TakeForMemories(builder, routing, {"attn.gk_proj", "attn.shared_gk", ".0"},
                                    kDecayRank, model_dim),
                    {.factor_of = mixer->decay_.weights}));
    if (config.output_gate) {
      MNEME_RETURN_IF_ERROR(streams.Add(
          fields,
          TakeProjection(builder, "attn.g_proj", config.heads * config.value_dim, model_dim),
          {.by_token = true}));
    }
    mixer->memory_ = fields.AddMatrices("memory", config.heads, config.value_dim, config.key_dim);
    mixer->pending_.Add(builder, mixer->memory_,
                        {.heads = config.heads,
                         .key_dim = config.key_dim,
                         .value_heads = config.heads,
                         .value_dim = config.value_dim,
                         .key_decays = true});
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

  bool uses_row_index() const override { return !config_.routing.routed(); }

  void Settle(ForwardContext& ctx, const TensorView& slots) const override {
    pending_.Settle(ctx, slots, memory_, /*written=*/{});
  }

  void Forward(ForwardContext& ctx, const Norm& norm, TensorView hidden) const override {
    const Workspace::Scope scope(ctx.workspace);
    const StepEntries entries =
        router_.Enter(ctx, norm, hidden, streams_.products(), ctx.State(written_));
    MemoryStreams streams = streams_.Project(ctx, entries);
    // What all memories share is spread over the entries before it is multiplied.
    if (entries.routed() && !decay_.by_memory) streams.Finish(ctx);

    const TensorView rate = ctx.Temp({entries.count, decay_.out()});
    Project(ctx.kernels(), {{.projection = decay_,
                             .x = streams[kRank],
                             .y = rate,
                             .group_offsets = entries.group_offsets}});
    const TensorView log_decay = streams.DecayGates(streams.Add(rate), config_.kv_heads,
                                                    {.gate = DecayGate::kLogSigmoid,
                                                     .normalizer = kDecayNormalizer,
                                                     .least = config_.least_log_decay});
    const TensorView read = ctx.Temp({entries.count, config_.heads, config_.value_dim});
    const MatrixMemoryArgs rule = {.rule = kRule,
                                   .q = ByHead(streams[kQ], config_.heads),
                                   .k = ByHead(streams[kK], config_.kv_heads),
                                   .v = ByHead(streams[kV], config_.kv_heads),
                                   .log_decay = log_decay,
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
  static constexpr MatrixRule kRule = {.decay = MatrixRule::Decay::kKey,
                                       .correction = MatrixRule::Correction::kNone};
  enum { kQ, kK, kV, kRank, kGate };

  GatedLinearAttentionConfig config_;
  MemoryRouter router_;
  EntryStreams streams_;
  Projection decay_;  // [kv_heads * key_dim, kDecayRank]
  StateField written_, memory_;
  PendingFields pending_;
  MemoryOutput output_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeGatedLinearAttention(
    const LayerBuilder& builder, const GatedLinearAttentionConfig& config) {
  return GatedLinearAttention::Make(builder, config);
}

}  // namespace mneme
