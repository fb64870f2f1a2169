#include "models/mixers/memory_and_attention.h"

#include <utility>

#include "base/status_macros.h"
#include "models/step_products.h"

namespace mneme {
namespace {

absl::StatusOr<Norm> TakeChannelNorm(const LayerBuilder& builder, const char* weight) {
  return TakeNorm(builder.weights(), builder.prefix, {weight}, builder.model_dim, builder.norm_eps);
}

// Room for Norm(hidden) as the products of a part take it, in the caller's workspace scope.
template <typename Part>
TensorView TempFor(ForwardContext& ctx, const Part& part, const TensorView& hidden) {
  return ctx.TempForProducts(hidden.shape, part.products());
}

class MemoryAsGate final : public SequenceMixer {
 public:
  static absl::StatusOr<std::unique_ptr<SequenceMixer>> Make(const LayerBuilder& builder,
                                                             const MemoryAsGateConfig& config) {
    auto mixer = std::make_unique<MemoryAsGate>();
    mixer->config_ = config;
    MNEME_ASSIGN_OR_RETURN(mixer->memory_, NeuralMemory::Make(builder, config.memory));
    MNEME_ASSIGN_OR_RETURN(mixer->attention_norm_,
                           TakeChannelNorm(builder, "attention_layernorm.weight"));
    MNEME_ASSIGN_OR_RETURN(mixer->attention_, PrefixAttention::Make(builder, config.attention));
    MNEME_ASSIGN_OR_RETURN(mixer->memory_output_norm_,
                           TakeChannelNorm(builder, "memory_output_norm.weight"));
    MNEME_ASSIGN_OR_RETURN(mixer->attention_output_norm_,
                           TakeChannelNorm(builder, "attention_output_norm.weight"));
    return mixer;
  }

  bool uses_row_index() const override { return true; }

  void Settle(ForwardContext& ctx, const TensorView& slots) const override {
    memory_.Settle(ctx, slots);
  }

  void Forward(ForwardContext& ctx, const Norm& norm, TensorView hidden) const override {
    const Workspace::Scope scope(ctx.workspace);
    Kernels& kernels = ctx.kernels();
    const TensorView memory = ctx.Temp(hidden.shape), attention = ctx.Temp(hidden.shape);
    memory_.Feed(ctx, ctx.row_index, TempFor(ctx, memory_, hidden), memory,
                 /*accumulate=*/false, {&norm, hidden});
    attention_.Attend(ctx, TempFor(ctx, attention_, hidden), attention,
                      /*accumulate=*/false, {&attention_norm_, hidden});
    if (GateFused(ctx, memory, attention, hidden)) return;
    ApplyNorm(kernels, memory_output_norm_, memory, memory);
    ApplyNorm(kernels, attention_output_norm_, attention, attention);
    if (config_.activation != Activation::kIdentity) {
      const ActivateArgs activations[] = {
          {.x = memory, .activation = config_.activation, .y = memory},
          {.x = attention, .activation = config_.activation, .y = attention}};
      kernels.Activate(std::span(activations).first(config_.activates_both ? 2 : 1));
    }
    kernels.Multiply({.a = memory, .b = attention, .y = hidden, .accumulate = true});
  }

 private:
  bool GateFused(ForwardContext& ctx, const TensorView& memory, const TensorView& attention,
                 const TensorView& hidden) const {
    LayerNormSteps* const steps =
        ctx.batch.longest_row == 1 ? LayerNormStepsOf(ctx.kernels()) : nullptr;
    const Activation other = config_.activates_both ? config_.activation : Activation::kIdentity;
    return steps != nullptr &&
           steps->NormedGateStep({.factors = {{.x = memory,
                                               .norm = AsStep(memory_output_norm_),
                                               .activation = config_.activation},
                                              {.x = attention,
                                               .norm = AsStep(attention_output_norm_),
                                               .activation = other}},
                                  .hidden = hidden});
  }

  MemoryAsGateConfig config_;
  NeuralMemory memory_;
  PrefixAttention attention_;
  Norm attention_norm_, memory_output_norm_, attention_output_norm_;
};

class MemoryAsLayer final : public SequenceMixer {
 public:
  static absl::StatusOr<std::unique_ptr<SequenceMixer>> Make(const LayerBuilder& builder,
                                                             const MemoryAsLayerConfig& config) {
    auto mixer = std::make_unique<MemoryAsLayer>();
    mixer->inner_residual_ = config.inner_residual;
    MNEME_ASSIGN_OR_RETURN(mixer->memory_, NeuralMemory::Make(builder, config.memory));
    MNEME_ASSIGN_OR_RETURN(mixer->attention_norm_,
                           TakeChannelNorm(builder, "attention_layernorm.weight"));
    MNEME_ASSIGN_OR_RETURN(mixer->attention_, PrefixAttention::Make(builder, config.attention));
    return mixer;
  }

  bool uses_row_index() const override { return true; }

  void Settle(ForwardContext& ctx, const TensorView& slots) const override {
    memory_.Settle(ctx, slots);
  }

  void Forward(ForwardContext& ctx, const Norm& norm, TensorView hidden) const override {
    const Workspace::Scope scope(ctx.workspace);
    const TensorView memory = inner_residual_ ? hidden : ctx.Temp(hidden.shape);
    memory_.Feed(ctx, ctx.row_index, TempFor(ctx, memory_, hidden), memory,
                 /*accumulate=*/inner_residual_, {&norm, hidden});
    attention_.Attend(ctx, TempFor(ctx, attention_, memory), hidden,
                      /*accumulate=*/true, {&attention_norm_, memory});
  }

 private:
  bool inner_residual_ = true;
  NeuralMemory memory_;
  PrefixAttention attention_;
  Norm attention_norm_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeMemoryAsGate(const LayerBuilder& builder,
                                                                const MemoryAsGateConfig& config) {
  return MemoryAsGate::Make(builder, config);
}

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeMemoryAsLayer(
    const LayerBuilder& builder, const MemoryAsLayerConfig& config) {
  return MemoryAsLayer::Make(builder, config);
}

}  // namespace mneme
