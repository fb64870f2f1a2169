#include "models/layer.h"

#include "base/status_macros.h"
#include "models/mixer_registry.h"

namespace mneme {

absl::StatusOr<Layer> Layer::Make(const LayerBuilder& builder) {
  const Shape norm{builder.config.model_dim};
  Layer layer;
  layer.mixer_norm_.eps = layer.feed_forward_norm_.eps = builder.config.norm_eps;
  MNEME_ASSIGN_OR_RETURN(layer.mixer_norm_.weight,
                         builder.weights.Floats(builder.Weight("attn_norm.weight"), norm));
  MNEME_ASSIGN_OR_RETURN(layer.mixer_, MakeMixer(builder));
  MNEME_ASSIGN_OR_RETURN(layer.feed_forward_norm_.weight,
                         builder.weights.Floats(builder.Weight("mlp_norm.weight"), norm));
  MNEME_ASSIGN_OR_RETURN(layer.feed_forward_, FeedForward::Make(builder));
  return layer;
}

void Layer::Forward(ForwardContext& ctx, TensorView hidden) const {
  mixer_->Forward(ctx, mixer_norm_, hidden);
  feed_forward_.Forward(ctx, feed_forward_norm_, hidden);
}

}  // namespace mneme
