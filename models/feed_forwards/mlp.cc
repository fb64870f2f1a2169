#include "models/feed_forwards/mlp.h"

#include "base/status_macros.h"
#include "models/step_products.h"

namespace mneme {
namespace {

class Mlp final : public FeedForward {
 public:
  static absl::StatusOr<std::unique_ptr<FeedForward>> Make(const LayerBuilder& builder,
                                                           const MlpConfig& config) {
    auto mlp = std::make_unique<Mlp>();
    mlp->activation_ = config.activation;
    MNEME_ASSIGN_OR_RETURN(mlp->up_, TakeProjection(builder, config.up, config.dim,
                                                    builder.model_dim, config.bias, config.order));
    MNEME_ASSIGN_OR_RETURN(mlp->down_, TakeProjection(builder, config.down, builder.model_dim,
                                                      config.dim, config.bias, config.order));
    return mlp;
  }

  void Forward(ForwardContext& ctx, const Norm& norm, TensorView hidden) const override {
    const Workspace::Scope scope(ctx.workspace);
    const TensorView inner = ctx.TempForProducts({hidden.shape[0], up_.out()}, {down_.weights});
    ProjectNormed(ctx, norm, hidden, {{.projection = up_, .y = inner}}, activation_);
    AddProjection(ctx, down_, inner, hidden);
  }

 private:
  Activation activation_ = Activation::kRelu;
  Projection up_;    // [dim, model_dim]
  Projection down_;  // [model_dim, dim]
};

}  // namespace

absl::StatusOr<std::unique_ptr<FeedForward>> MakeMlp(const LayerBuilder& builder,
                                                     const MlpConfig& config) {
  return Mlp::Make(builder, config);
}

}  // namespace mneme
