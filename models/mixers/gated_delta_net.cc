// Gated DeltaNet (Yang, Kautz, Hatamizadeh, arXiv:2412.06464): one matrix memory per value head,
// which every token goes to.

#include "models/mixers/gated_delta_net.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "models/mixers/delta_memory.h"
#include "models/projection.h"

namespace mneme {
namespace {

class GatedDeltaNet final : public SequenceMixer {
 public:
  static absl::StatusOr<std::unique_ptr<SequenceMixer>> Make(const LayerBuilder& builder,
                                                             const GatedDeltaConfig& config) {
    const int model_dim = builder.model_dim;
    const auto take = [&](absl::string_view name, int out) {
      return TakeProjection(builder, name, out, model_dim);
    };
    auto mixer = std::make_unique<GatedDeltaNet>();
    MNEME_ASSIGN_OR_RETURN(mixer->q_proj_, take("attn.q_proj", config.key_channels()));
    MNEME_ASSIGN_OR_RETURN(mixer->k_proj_, take("attn.k_proj", config.key_channels()));
    MNEME_ASSIGN_OR_RETURN(mixer->v_proj_, take("attn.v_proj", config.value_channels()));
    MNEME_ASSIGN_OR_RETURN(mixer->a_proj_, take("attn.a_proj", config.value_heads));
    MNEME_ASSIGN_OR_RETURN(mixer->b_proj_, take("attn.b_proj", config.value_heads));
    if (config.output_gate) {
      MNEME_ASSIGN_OR_RETURN(mixer->g_proj_, take("attn.g_proj", config.value_channels()));
    }
    MNEME_ASSIGN_OR_RETURN(
        mixer->memory_,
        DeltaMemory::Make(builder, config, {&mixer->q_proj_, &mixer->k_proj_, &mixer->v_proj_}));
    mixer->config_ = config;
    return mixer;
  }

  void Settle(ForwardContext& ctx, const TensorView& slots) const override {
    memory_.Settle(ctx, slots);
  }

  void Forward(ForwardContext& ctx, const Norm& norm, TensorView hidden) const override {
    const Workspace::Scope scope(ctx.workspace);
    const std::optional<DeltaMixer> fused = Fused(ctx.slabs, norm);
    if (ctx.batch.longest_row == 1 && fused.has_value() &&
        ctx.kernels().DeltaMixerStep(
            {.mixer = *fused, .hidden = hidden, .slots = ctx.batch.slots})) {
      return;
    }
    const int tokens = ctx.batch.tokens;
    const TensorView x = ctx.Normed(norm, hidden,
                                    {q_proj_.weights, k_proj_.weights, v_proj_.weights,
                                     a_proj_.weights, b_proj_.weights, g_proj_.weights});
    const DeltaStreams streams{
        .q = ctx.TempOfProducts(x, q_proj_.weights, {tokens, config_.key_channels()}),
        .k = ctx.TempOfProducts(x, k_proj_.weights, {tokens, config_.key_channels()}),
        .v = ctx.TempOfProducts(x, v_proj_.weights, {tokens, config_.value_channels()}),
        .a = ctx.Temp({tokens, config_.value_heads}),
        .b = ctx.Temp({tokens, config_.value_heads})};
    std::vector<ProjectionArgs> products = {{.projection = q_proj_, .x = x, .y = streams.q},
                                            {.projection = k_proj_, .x = x, .y = streams.k},
                                            {.projection = v_proj_, .x = x, .y = streams.v},
                                            {.projection = a_proj_, .x = x, .y = streams.a},
                                            {.projection = b_proj_, .x = x, .y = streams.b}};
    TensorView gate;
    if (g_proj_.exists()) {
      gate = ctx.TempOfProducts(x, g_proj_.weights, {tokens, config_.value_channels()});
      products.push_back({.projection = g_proj_, .x = x, .y = gate});
    }
    Project(ctx.kernels(), products);

    // With one memory for all tokens, entries are the tokens in order.
    const StepEntries entries = {
        .x = x, .tokens = tokens, .count = tokens, .segments = TempSegments(ctx, /*memories=*/1)};
    ctx.kernels().Dispatch({.row_offsets = ctx.batch.row_offsets,
                            .slots = ctx.batch.slots,
                            .shared = true,
                            .written = memory_.Written(ctx),
                            .entry_tokens = ctx.TempIndices({tokens}),
                            .token_entries = ctx.TempIndices({tokens, 1}),
                            .group_offsets = ctx.TempIndices({2}),
                            .segments = entries.segments});
    const TensorView read = memory_.WriteAndRead(ctx, streams, entries);
    memory_.output().Emit(ctx, entries, read, gate, hidden);
  }

  // The fused kernels know one gate.
  std::optional<DeltaMixer> Fused(const Slabs& slabs, const Norm& norm) const override {
    if (config_.gate_activation != Activation::kSilu) return std::nullopt;
    DeltaMixer mixer = memory_.Fused(slabs, norm);
    mixer.shared = true;
    mixer.q_proj = q_proj_.matrix();
    mixer.g_proj = g_proj_.matrix();
    mixer.k_proj = k_proj_.weights;
    mixer.v_proj = v_proj_.weights;
    mixer.a_proj = a_proj_.weights;
    mixer.b_proj = b_proj_.weights;
    return mixer;
  }

 private:
  GatedDeltaConfig config_;
  Projection q_proj_, k_proj_;  // [key_channels, model_dim]
  Projection v_proj_, g_proj_;  // [value_channels, model_dim]
  Projection a_proj_, b_proj_;  // [value_heads, model_dim]
  DeltaMemory memory_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeGatedDeltaNet(const LayerBuilder& builder,
                                                                 const GatedDeltaConfig& config) {
  return GatedDeltaNet::Make(builder, config);
}

}  // namespace mneme
