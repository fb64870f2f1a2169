#include "models/layer.h"

#include <optional>

#include "base/status_macros.h"
#include "models/mixer_registry.h"

namespace mneme {

absl::StatusOr<Layer> Layer::Make(const LayerBuilder& builder) {
  const Shape norm{builder.config.model_dim};
  Layer layer;
  layer.index_ = builder.layer;
  layer.mixer_norm_.eps = layer.feed_forward_norm_.eps = builder.config.norm_eps;
  MNEME_ASSIGN_OR_RETURN(layer.mixer_norm_.weight,
                         builder.weights.Floats(builder.Weight("attn_norm.weight"), norm));
  MNEME_ASSIGN_OR_RETURN(layer.mixer_, MakeMixer(builder));
  MNEME_ASSIGN_OR_RETURN(layer.feed_forward_norm_.weight,
                         builder.weights.Floats(builder.Weight("mlp_norm.weight"), norm));
  MNEME_ASSIGN_OR_RETURN(layer.feed_forward_, FeedForward::Make(builder));
  return layer;
}

std::optional<DecodeLayerArgs> Layer::StepArgs(ForwardContext& ctx, TensorView hidden) const {
  std::optional<DeltaMixerStepArgs> mixer = mixer_->StepArgs(ctx, mixer_norm_, hidden);
  if (!mixer.has_value()) return std::nullopt;
  return DecodeLayerArgs{*mixer, feed_forward_.StepArgs(feed_forward_norm_, hidden)};
}

bool Layer::Step(ForwardContext& ctx, TensorView hidden) const {
  const Workspace::Scope scope(ctx.workspace);
  const std::optional<DecodeLayerArgs> step = StepArgs(ctx, hidden);
  if (!step.has_value() ||
      ctx.kernels().DecodeLayers({&*step, 1}, nullptr) == DecodeDone::kNothing) {
    return false;
  }
  if (ctx.routing != nullptr && step->mixer.memories > 0) {
    ctx.routing->OnRouted(index_, step->mixer.indices, step->mixer.weights);
  }
  return true;
}

void Layer::Forward(ForwardContext& ctx, TensorView hidden) const {
  // Watched steps go layer by layer; others have tried all layers at once.
  if (ctx.routing != nullptr && ctx.batch.longest_row == 1 && Step(ctx, hidden)) return;
  mixer_->Forward(ctx, mixer_norm_, hidden);
  feed_forward_.Forward(ctx, feed_forward_norm_, hidden);
}

}  // namespace mneme
