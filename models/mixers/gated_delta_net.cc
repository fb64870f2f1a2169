// Gated DeltaNet (Yang, Kautz, Hatamizadeh, arXiv:2412.06464): one matrix memory per value head,
// which every token goes to.

#include "models/mixers/gated_delta_net.h"

#include <memory>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "models/mixers/delta_memory.h"

namespace mneme {
namespace {

class GatedDeltaNet final : public SequenceMixer {
 public:
  static absl::StatusOr<std::unique_ptr<SequenceMixer>> Make(const LayerBuilder& builder,
                                                             const GatedDeltaConfig& config) {
    const int model_dim = builder.model_dim;
    const auto take = [&](absl::string_view name, int out) {
      return builder.weights().Matrix(builder.Weight(name), out, model_dim);
    };
    auto mixer = std::make_unique<GatedDeltaNet>();
    MNEME_ASSIGN_OR_RETURN(mixer->q_proj_, take("attn.q_proj.weight", config.key_channels()));
    MNEME_ASSIGN_OR_RETURN(mixer->k_proj_, take("attn.k_proj.weight", config.key_channels()));
    MNEME_ASSIGN_OR_RETURN(mixer->v_proj_, take("attn.v_proj.weight", config.value_channels()));
    MNEME_ASSIGN_OR_RETURN(mixer->a_proj_, take("attn.a_proj.weight", config.value_heads));
    MNEME_ASSIGN_OR_RETURN(mixer->b_proj_, take("attn.b_proj.weight", config.value_heads));
    if (config.output_gate) {
      MNEME_ASSIGN_OR_RETURN(mixer->g_proj_, take("attn.g_proj.weight", config.value_channels()));
    }
    MNEME_ASSIGN_OR_RETURN(
        mixer->memory_,
        DeltaMemory::Make(builder, config, {&mixer->q_proj_, &mixer->k_proj_, &mixer->v_proj_}));
    mixer->config_ = config;
    return mixer;
  }

  absl::Status InitState(Backend&, std::byte*) const override {
    return absl::OkStatus();  // the flags of an unwritten memory are zeros
  }

  void Settle(ForwardContext& ctx, const TensorView& slots) const override {
    memory_.Settle(ctx, slots);
  }

  void Forward(ForwardContext& ctx, const Norm& norm, TensorView hidden) const override {
    const Workspace::Scope scope(ctx.workspace);
    if (ctx.batch.longest_row == 1 && ctx.kernels().DeltaMixerStep(*StepArgs(ctx, norm, hidden))) {
      return;
    }
    const int tokens = ctx.batch.tokens;
    const size_t gates = config_.output_gate ? 1 : 0;
    const TensorView x = ctx.Normed(norm, hidden,
                                    {{&q_proj_, 1},
                                     {&k_proj_, 1},
                                     {&v_proj_, 1},
                                     {&a_proj_, 1},
                                     {&b_proj_, 1},
                                     {&g_proj_, gates}});
    const DeltaStreams streams{
        .q = ctx.TempOfProducts(x, {&q_proj_, 1}, {tokens, config_.key_channels()}),
        .k = ctx.TempOfProducts(x, {&k_proj_, 1}, {tokens, config_.key_channels()}),
        .v = ctx.TempOfProducts(x, {&v_proj_, 1}, {tokens, config_.value_channels()}),
        .a = ctx.Temp({tokens, config_.value_heads}),
        .b = ctx.Temp({tokens, config_.value_heads})};
    TensorView gate;
    if (config_.output_gate) {
      gate = ctx.TempOfProducts(x, {&g_proj_, 1}, {tokens, config_.value_channels()});
    }
    const LinearArgs projections[] = {{.x = x, .weights = {&q_proj_, 1}, .y = streams.q},
                                      {.x = x, .weights = {&k_proj_, 1}, .y = streams.k},
                                      {.x = x, .weights = {&v_proj_, 1}, .y = streams.v},
                                      {.x = x, .weights = {&a_proj_, 1}, .y = streams.a},
                                      {.x = x, .weights = {&b_proj_, 1}, .y = streams.b},
                                      {.x = x, .weights = {&g_proj_, 1}, .y = gate}};
    const size_t count = std::size(projections) - 1 + gates;
    ctx.kernels().Linear(std::span(projections).first(count));

    // With one memory for all tokens, entries are the tokens in order.
    const Segments segments = TempSegments(ctx, /*memories=*/1);
    ctx.kernels().Dispatch({.row_offsets = ctx.batch.row_offsets,
                            .slots = ctx.batch.slots,
                            .shared = true,
                            .written = memory_.Written(ctx),
                            .entry_tokens = ctx.TempIndices({tokens}),
                            .token_entries = ctx.TempIndices({tokens, 1}),
                            .group_offsets = ctx.TempIndices({2}),
                            .segments = segments});
    const TensorView read = memory_.WriteAndRead(ctx, streams, segments, tokens);
    memory_.Emit(ctx, read, gate, hidden);
  }

  std::optional<DeltaMixerStepArgs> StepArgs(ForwardContext& ctx, const Norm& norm,
                                             TensorView hidden) const override {
    DeltaMixerStepArgs step = memory_.StepArgs(ctx, norm, hidden);
    step.shared = true;
    step.q_proj = q_proj_;
    step.g_proj = g_proj_;
    step.k_proj = {&k_proj_, 1};
    step.v_proj = {&v_proj_, 1};
    step.a_proj = {&a_proj_, 1};
    step.b_proj = {&b_proj_, 1};
    return step;
  }

 private:
  GatedDeltaConfig config_;
  PackedMatrix q_proj_, k_proj_;  // [key_channels, model_dim]
  PackedMatrix v_proj_, g_proj_;  // [value_channels, model_dim]
  PackedMatrix a_proj_, b_proj_;  // [value_heads, model_dim]
  DeltaMemory memory_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeGatedDeltaNet(const LayerBuilder& builder,
                                                                 const GatedDeltaConfig& config) {
  return GatedDeltaNet::Make(builder, config);
}

}  // namespace mneme
