#include "models/feed_forwards/gated_mlp.h"

#include <optional>
#include <vector>

#include "base/status_macros.h"

namespace mneme {
namespace {

class GatedMlp final : public FeedForward {
 public:
  static absl::StatusOr<std::unique_ptr<FeedForward>> Make(const LayerBuilder& builder, int mlp_dim,
                                                           Bias bias) {
    const int model_dim = builder.model_dim;
    Weights& weights = builder.weights();
    auto mlp = std::make_unique<GatedMlp>();
    if (!weights.Has(builder.Weight("mlp.up_proj.weight")) &&
        weights.HasShape(builder.Weight("mlp.gate_proj.weight"),
                         {2 * int64_t{mlp_dim}, model_dim})) {
      const int parts[] = {mlp_dim, mlp_dim};
      MNEME_ASSIGN_OR_RETURN(const std::vector<Projection> both,
                             TakeProjectionParts(builder, "mlp.gate_proj", parts, model_dim, bias));
      mlp->gate_ = both[0];
      mlp->up_ = both[1];
    } else {
      MNEME_ASSIGN_OR_RETURN(mlp->gate_,
                             TakeProjection(builder, "mlp.gate_proj", mlp_dim, model_dim, bias));
      MNEME_ASSIGN_OR_RETURN(mlp->up_,
                             TakeProjection(builder, "mlp.up_proj", mlp_dim, model_dim, bias));
    }
    MNEME_ASSIGN_OR_RETURN(mlp->down_,
                           TakeProjection(builder, "mlp.down_proj", model_dim, mlp_dim, bias));
    return mlp;
  }

  std::optional<GatedFeedForward> Fused(const Norm& norm) const override {
    if (norm.kind != NormKind::kRms || down_.has_bias()) return std::nullopt;
    return GatedFeedForward{.norm = norm.weight,
                            .norm_eps = norm.eps,
                            .gate = gate_.matrix(),
                            .up = up_.matrix(),
                            .down = down_.matrix()};
  }

  void Forward(ForwardContext& ctx, const Norm& norm, TensorView hidden) const override {
    if (ctx.batch.longest_row == 1) {
      const std::optional<GatedFeedForward> fused = Fused(norm);
      if (fused.has_value() &&
          ctx.kernels().FeedForwardStep({.network = *fused, .hidden = hidden})) {
        return;
      }
    }
    const Workspace::Scope scope(ctx.workspace);
    const int64_t tokens = hidden.shape[0];
    const TensorView x = ctx.Normed(norm, hidden, {gate_.weights, up_.weights});
    const TensorView inner = ctx.TempForProducts({tokens, gate_.out()}, {down_.weights});
    if (!ctx.kernels().SwiGluProduct({.x = x,
                                      .gate = gate_.matrix(),
                                      .up = up_.matrix(),
                                      .y = inner,
                                      .gate_bias = gate_.bias,
                                      .up_bias = up_.bias})) {
      const TensorView gate = ctx.Temp(inner.shape), up = ctx.Temp(inner.shape);
      const LinearArgs in[] = {{.x = x, .weights = gate_.weights, .y = gate, .bias = gate_.bias},
                               {.x = x, .weights = up_.weights, .y = up, .bias = up_.bias}};
      ctx.kernels().Linear(in);
      ctx.kernels().SwiGlu({.gate = gate, .up = up, .y = inner});
    }
    AddProjection(ctx.kernels(), down_, inner, hidden);
  }

 private:
  Projection gate_, up_, down_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<FeedForward>> MakeGatedMlp(const LayerBuilder& builder, int mlp_dim,
                                                          Bias bias) {
  return GatedMlp::Make(builder, mlp_dim, bias);
}

}  // namespace mneme
