// One token, per head:
//   q = silu(conv(Wq x));   f = lower + (1 - lower) sigmoid(conv(Wf x));   i = conv(Wi x)
//   S <- S diag(f) + i (1 - f)^T;   o = S q / sqrt(key_dim)
//   out = Wo RmsNorm( concat o )

#include "models/mixers/hgrn2.h"

#include <cmath>

#include "base/status_macros.h"
#include "models/mixers/entry_streams.h"
#include "models/mixers/memory_fields.h"
#include "models/mixers/memory_output.h"
#include "models/mixers/pending_fields.h"

namespace mneme {
namespace {

class Hgrn2 final : public SequenceMixer {
 public:
  static absl::StatusOr<std::unique_ptr<SequenceMixer>> Make(const LayerBuilder& builder,
                                                             const Hgrn2Config& config) {
    const int model_dim = builder.model_dim, width = config.conv_width;
    const int keys = config.heads * config.key_dim, values = config.heads * config.value_dim;
    auto mixer = std::make_unique<Hgrn2>();
    mixer->config_ = config;
    mixer->pending_ = PendingFields::Of(builder, kRule, config.key_dim, config.value_dim);
    const MemoryFields fields(builder, /*routing=*/{});
    EntryStreams& streams = mixer->streams_;
    MNEME_RETURN_IF_ERROR(streams.Add(fields,
                                      TakeProjection(builder, "attn.q_proj", keys, model_dim),
                                      Convolved("q", width, Activation::kSilu)));
    MNEME_RETURN_IF_ERROR(streams.Add(fields,
                                      TakeProjection(builder, "attn.f_proj", keys, model_dim),
                                      Convolved("f", width, Activation::kIdentity)));
    MNEME_RETURN_IF_ERROR(streams.Add(fields,
                                      TakeProjection(builder, "attn.i_proj", values, model_dim),
                                      Convolved("i", width, Activation::kIdentity)));
    if (!config.lower_bounds.empty()) {
      MNEME_ASSIGN_OR_RETURN(mixer->lower_, builder.weights().Constant(config.lower_bounds));
      mixer->lower_.shape = {config.heads, config.key_dim};
    }
    mixer->memory_ = fields.AddMatrices("memory", config.heads, config.value_dim, config.key_dim);
    mixer->pending_.Add(builder, mixer->memory_,
                        {.heads = config.heads,
                         .key_dim = config.key_dim,
                         .value_heads = config.heads,
                         .value_dim = config.value_dim,
                         .key_decays = true});
    MNEME_ASSIGN_OR_RETURN(mixer->output_,
                           MemoryOutput::Make(builder, {.norm = "attn.g_norm",
                                                        .affine = config.norm_affine,
                                                        .eps = config.norm_eps,
                                                        .dim = values}));
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
    const TensorView k = ctx.Temp({entries.count, config_.heads, config_.key_dim});
    const TensorView forget = streams.DecayGates(
        kForget, config_.heads, {.gate = DecayGate::kForget, .lower = lower_, .complement = k});
    const TensorView read = ctx.Temp({entries.count, config_.heads, config_.value_dim});
    const MatrixMemoryArgs rule = {.rule = kRule,
                                   .q = ByHead(streams[kQ], config_.heads),
                                   .k = k,
                                   .v = ByHead(streams[kInput], config_.heads),
                                   .log_decay = forget,
                                   .scale = 1.0f / std::sqrt(static_cast<float>(config_.key_dim)),
                                   .segments = entries.segments,
                                   .state = ctx.State(memory_),
                                   .pending = pending_.View(ctx.slabs),
                                   .out = read};
    streams.Run(ctx, rule);
    output_.Emit(ctx, entries, Flat(read), /*gate=*/{}, hidden);
  }

 private:
  static constexpr MatrixRule kRule = {.decay = MatrixRule::Decay::kKey,
                                       .correction = MatrixRule::Correction::kNone};
  enum { kQ, kForget, kInput };

  Hgrn2Config config_;
  EntryStreams streams_;
  TensorView lower_;  // [heads, key_dim] f32, or empty
  StateField memory_;
  PendingFields pending_;
  MemoryOutput output_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeHgrn2(const LayerBuilder& builder,
                                                         const Hgrn2Config& config) {
  return Hgrn2::Make(builder, config);
}

}  // namespace mneme
