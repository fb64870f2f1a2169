#include "models/feed_forwards/channel_mix.h"

#include <span>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "kernels/recurrent_steps.h"
#include "models/token_shift.h"

namespace mneme {
namespace {

class ChannelMixer final : public FeedForward {
 public:
  static absl::StatusOr<std::unique_ptr<FeedForward>> Make(const LayerBuilder& builder,
                                                           ChannelMix mix, int mlp_dim) {
    const int model_dim = builder.model_dim;
    Weights& weights = builder.weights();
    auto mixer = std::make_unique<ChannelMixer>();
    mixer->receives_ = mix == ChannelMix::kReceptance;
    std::vector<std::string> mixes;
    if (mixer->receives_) {
      mixes = {builder.Weight("ffn.key.mu"), builder.Weight("ffn.receptance.mu")};
      MNEME_ASSIGN_OR_RETURN(
          mixer->key_, weights.Matrix(builder.Weight("ffn.key.linear.weight"), mlp_dim, model_dim));
      MNEME_ASSIGN_OR_RETURN(
          mixer->receptance_,
          weights.Matrix(builder.Weight("ffn.receptance.linear.weight"), model_dim, model_dim));
    } else {
      mixes = {builder.Weight("ffn.x_k")};
      MNEME_ASSIGN_OR_RETURN(mixer->key_,
                             weights.Matrix(builder.Weight("ffn.key.weight"), mlp_dim, model_dim));
    }
    MNEME_ASSIGN_OR_RETURN(mixer->value_,
                           weights.Matrix(builder.Weight("ffn.value.weight"), model_dim, mlp_dim));
    MNEME_ASSIGN_OR_RETURN(const TensorView mix_values,
                           weights.FloatGroup(mixes, {model_dim}, WeightInit::kNormal));
    mixer->shift_ = MakeTokenShift(builder, "channel_shift", mix_values);
    return mixer;
  }

  bool uses_row_index() const override { return true; }

  void Forward(ForwardContext& ctx, const Norm& norm, TensorView hidden) const override {
    const Workspace::Scope scope(ctx.workspace);
    Kernels& kernels = ctx.kernels();
    const int64_t tokens = hidden.shape[0];
    const TensorView x = ctx.Temp(hidden.shape);
    std::vector<std::span<const PackedMatrix>> products = {{&key_, 1}};
    if (receives_) products.push_back({&receptance_, 1});
    const TensorView shifted =
        NormedAndShifted(ctx, norm, hidden, x, /*keep=*/false, shift_, products);

    const TensorView inner = ctx.TempForProducts({tokens, key_.out_features}, {{&value_, 1}});
    const TensorView receptance = receives_ ? ctx.Temp(hidden.shape) : TensorView{};
    std::vector<ActivatedProduct> in = {
        {.product = {.x = Part(shifted, 0), .weights = {&key_, 1}, .y = inner},
         .activation = Activation::kSquaredRelu}};
    if (receives_) {
      in.push_back(
          {.product = {.x = Part(shifted, 1), .weights = {&receptance_, 1}, .y = receptance},
           .activation = Activation::kSigmoid});
    }
    RecurrentSteps* const fused = RecurrentStepsOf(kernels);
    if (fused == nullptr || !fused->ActivatedProducts(in)) {
      const TensorView key = ctx.Temp(inner.shape);
      std::vector<ActivateArgs> activations;
      std::vector<LinearArgs> sums;
      for (const ActivatedProduct& each : in) {
        LinearArgs product = each.product;
        if (sums.empty()) product.y = key;
        activations.push_back({.x = product.y, .activation = each.activation, .y = each.product.y});
        sums.push_back(product);
      }
      kernels.Linear(sums);
      kernels.Activate(activations);
    }
    const TensorView value = receives_ ? x : hidden;
    const LinearArgs out[] = {
        {.x = inner, .weights = {&value_, 1}, .y = value, .accumulate = !receives_}};
    kernels.Linear(out);
    if (receives_) {
      kernels.Multiply({.a = receptance, .b = value, .y = hidden, .accumulate = true});
    }
  }

 private:
  bool receives_ = false;
  PackedMatrix key_;         // [mlp_dim, model_dim]
  PackedMatrix receptance_;  // [model_dim, model_dim]
  PackedMatrix value_;       // [model_dim, mlp_dim]
  TokenShift shift_;         // of key, and of receptance
};

}  // namespace

absl::StatusOr<std::unique_ptr<FeedForward>> MakeChannelMix(const LayerBuilder& builder,
                                                            ChannelMix mix, int mlp_dim) {
  return ChannelMixer::Make(builder, mix, mlp_dim);
}

}  // namespace mneme
