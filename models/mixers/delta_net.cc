// One token, per head:
//   q, k = norm(map(conv(Wq x))), norm(map(conv(Wk x)));   v = silu(conv(Wv x))
//   b = sigmoid(Wb x), twice that if eigenvalues may be negative
//   S <- S + b (v - S k) k^T;   o = S q / sqrt(key_dim)
//   out = Wo concat( RmsNorm_head(o) * silu(Wg x) )                           gate if there is one

#include "models/mixers/delta_net.h"

#include <cmath>

#include "base/status_macros.h"
#include "models/mixers/entry_streams.h"
#include "models/mixers/memory_fields.h"
#include "models/mixers/memory_output.h"
#include "models/mixers/pending_fields.h"

namespace mneme {
namespace {

class DeltaNet final : public SequenceMixer {
 public:
  static absl::StatusOr<std::unique_ptr<SequenceMixer>> Make(const LayerBuilder& builder,
                                                             const DeltaNetConfig& config) {
    const int model_dim = builder.model_dim;
    const int keys = config.heads * config.key_dim, values = config.heads * config.value_dim;
    auto mixer = std::make_unique<DeltaNet>();
    mixer->config_ = config;
    // Its rule is the gated delta rule without a decay, of which some devices hold writes back.
    if (config.learned_strength && config.key_norm == KeyNorm::kL2) {
      mixer->pending_ = PendingFields(builder);
    }
    const MemoryFields fields(builder, /*routing=*/{});
    EntryStreams& streams = mixer->streams_;
    const int width = config.conv_width;
    const Activation map = ActivationOf(config.key_map);
    MNEME_RETURN_IF_ERROR(streams.Add(fields,
                                      TakeProjection(builder, "attn.q_proj", keys, model_dim),
                                      Convolved("q", width, map)));
    MNEME_RETURN_IF_ERROR(streams.Add(fields,
                                      TakeProjection(builder, "attn.k_proj", keys, model_dim),
                                      Convolved("k", width, map)));
    MNEME_RETURN_IF_ERROR(streams.Add(fields,
                                      TakeProjection(builder, "attn.v_proj", values, model_dim),
                                      Convolved("v", width, Activation::kSilu)));
    const float most = config.allow_negative_eigenvalues ? 2.0f : 1.0f;
    if (config.learned_strength) {
      MNEME_RETURN_IF_ERROR(
          streams.Add(fields, TakeProjection(builder, "attn.b_proj", config.heads, model_dim),
                      {.activation = Activation::kSigmoid, .scale = most}));
    } else {
      MNEME_ASSIGN_OR_RETURN(mixer->strength_, TokenConstant::Make(builder, most));
    }
    if (config.output_gate) {
      MNEME_RETURN_IF_ERROR(streams.Add(
          fields, TakeProjection(builder, "attn.g_proj", values, model_dim), {.by_token = true}));
    }
    mixer->memory_ = fields.AddMatrices("memory", config.heads, config.value_dim, config.key_dim);
    mixer->pending_.Add(builder, mixer->memory_,
                        {.heads = config.heads,
                         .key_dim = config.key_dim,
                         .value_heads = config.heads,
                         .value_dim = config.value_dim});
    MNEME_ASSIGN_OR_RETURN(mixer->output_, MemoryOutput::Make(builder, {.norm = "attn.o_norm",
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
    const auto norm_of = [&](int stream) {
      return config_.key_norm == KeyNorm::kL2 ? streams.L2Norm(stream, config_.heads)
                                              : streams.SumNorm(stream, config_.heads, /*eps=*/0);
    };
    const TensorView read = ctx.Temp({entries.count, config_.heads, config_.value_dim});
    const MatrixMemoryArgs rule = {
        .rule = kRule,
        .q = norm_of(kQ),
        .k = norm_of(kK),
        .v = ByHead(streams[kV], config_.heads),
        .beta = config_.learned_strength ? streams[kStrength] : strength_.Read(ctx),
        .scale = 1.0f / std::sqrt(static_cast<float>(config_.key_dim)),
        .long_keys = config_.key_norm == KeyNorm::kSum,
        .segments = entries.segments,
        .state = ctx.State(memory_),
        .pending = pending_.View(ctx.slabs),
        .out = read};
    streams.Run(ctx, rule);
    const int gate = config_.learned_strength ? kStrength + 1 : kStrength;
    output_.Emit(ctx, entries, Flat(read), config_.output_gate ? streams[gate] : TensorView{},
                 hidden);
  }

 private:
  static constexpr MatrixRule kRule = {.decay = MatrixRule::Decay::kNone,
                                       .correction = MatrixRule::Correction::kDelta};
  enum { kQ, kK, kV, kStrength };  // if it is learned; then the gate

  DeltaNetConfig config_;
  EntryStreams streams_;
  TokenConstant strength_;  // otherwise
  StateField memory_;
  PendingFields pending_;
  MemoryOutput output_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeDeltaNet(const LayerBuilder& builder,
                                                            const DeltaNetConfig& config) {
  return DeltaNet::Make(builder, config);
}

}  // namespace mneme
