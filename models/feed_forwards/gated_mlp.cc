#include "models/feed_forwards/gated_mlp.h"

#include <optional>
#include <string>

#include "base/status_macros.h"

namespace mneme {
namespace {

class GatedMlp final : public FeedForward {
 public:
  static absl::StatusOr<std::unique_ptr<FeedForward>> Make(const LayerBuilder& builder,
                                                           int mlp_dim) {
    const int model_dim = builder.model_dim;
    Weights& weights = builder.weights();
    const std::string gate = builder.Weight("mlp.gate_proj.weight");
    const std::string up = builder.Weight("mlp.up_proj.weight");

    auto mlp = std::make_unique<GatedMlp>();
    if (!weights.Has(up) && weights.HasShape(gate, {2 * int64_t{mlp_dim}, model_dim})) {
      MNEME_ASSIGN_OR_RETURN(mlp->gate_,
                             weights.MatrixRows(gate, 2 * mlp_dim, model_dim, 0, mlp_dim));
      MNEME_ASSIGN_OR_RETURN(mlp->up_,
                             weights.MatrixRows(gate, 2 * mlp_dim, model_dim, mlp_dim, mlp_dim));
    } else {
      MNEME_ASSIGN_OR_RETURN(mlp->gate_, weights.Matrix(gate, mlp_dim, model_dim));
      MNEME_ASSIGN_OR_RETURN(mlp->up_, weights.Matrix(up, mlp_dim, model_dim));
    }
    MNEME_ASSIGN_OR_RETURN(
        mlp->down_, weights.Matrix(builder.Weight("mlp.down_proj.weight"), model_dim, mlp_dim));
    return mlp;
  }

  std::optional<GatedFeedForward> Fused(const Norm& norm) const override {
    if (norm.kind != NormKind::kRms) return std::nullopt;
    return GatedFeedForward{
        .norm = norm.weight, .norm_eps = norm.eps, .gate = gate_, .up = up_, .down = down_};
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
    const TensorView x = ctx.Normed(norm, hidden, {{&gate_, 1}, {&up_, 1}});
    const TensorView inner = ctx.TempForProducts({tokens, gate_.out_features}, {{&down_, 1}});
    if (!ctx.kernels().SwiGluProduct({.x = x, .gate = gate_, .up = up_, .y = inner})) {
      const TensorView gate = ctx.Temp(inner.shape), up = ctx.Temp(inner.shape);
      const LinearArgs in[] = {{.x = x, .weights = {&gate_, 1}, .y = gate},
                               {.x = x, .weights = {&up_, 1}, .y = up}};
      ctx.kernels().Linear(in);
      ctx.kernels().SwiGlu({.gate = gate, .up = up, .y = inner});
    }
    const LinearArgs out[] = {
        {.x = inner, .weights = {&down_, 1}, .y = hidden, .accumulate = true}};
    ctx.kernels().Linear(out);
  }

 private:
  PackedMatrix gate_, up_, down_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<FeedForward>> MakeGatedMlp(const LayerBuilder& builder,
                                                          int mlp_dim) {
  return GatedMlp::Make(builder, mlp_dim);
}

}  // namespace mneme
