#include "models/layer.h"

#include "base/status_macros.h"
#include "models/mixer_registry.h"

namespace mneme {

absl::StatusOr<Layer> Layer::Make(const LayerBuilder& builder) {
  const Shape norm{builder.config.model_dim};
  Layer layer;
  layer.norm_eps_ = builder.config.norm_eps;
  MNEME_ASSIGN_OR_RETURN(layer.mixer_norm_,
                         builder.weights.Floats(builder.Weight("attn_norm.weight"), norm));
  MNEME_ASSIGN_OR_RETURN(layer.mixer_, MakeMixer(builder));
  MNEME_ASSIGN_OR_RETURN(layer.feed_forward_norm_,
                         builder.weights.Floats(builder.Weight("mlp_norm.weight"), norm));
  MNEME_ASSIGN_OR_RETURN(layer.feed_forward_, FeedForward::Make(builder));
  return layer;
}

void Layer::Forward(ForwardContext& ctx, TensorView hidden) const {
  const Workspace::Scope scope(ctx.workspace);
  const TensorView normed = ctx.Temp(hidden.shape);
  ctx.kernels().RmsNorm({.x = hidden, .weight = mixer_norm_, .eps = norm_eps_, .y = normed});
  mixer_->Forward(ctx, normed, hidden);
  ctx.kernels().RmsNorm({.x = hidden, .weight = feed_forward_norm_, .eps = norm_eps_, .y = normed});
  feed_forward_.Forward(ctx, normed, hidden);
}

}  // namespace mneme
