#include "models/step_products.h"

#include <vector>

namespace mneme {
namespace {

bool IsDecodeStep(const ForwardContext& ctx) { return ctx.batch.longest_row == 1; }

bool AddsFused(const ForwardContext& ctx, const ResidualProductStepArgs& args) {
  LayerNormSteps* const fused = IsDecodeStep(ctx) ? LayerNormStepsOf(ctx.kernels()) : nullptr;
  return fused != nullptr && fused->ResidualProductStep(args);
}

}  // namespace

LayerNormSteps* FusedSteps(const ForwardContext& ctx, const Norm& norm) {
  if (!IsDecodeStep(ctx) || norm.kind != NormKind::kLayer) return nullptr;
  return LayerNormStepsOf(ctx.kernels());
}

StepNorm AsStep(const Norm& norm) {
  return {.weight = norm.weight,
          .bias = norm.bias,
          .eps = norm.eps,
          .centred = norm.kind == NormKind::kLayer};
}

StepProduct AsStep(const Projection& projection) {
  return {.weights = projection.matrix(), .bias = projection.bias};
}

void ProjectNormed(ForwardContext& ctx, const Norm& norm, const TensorView& hidden,
                   std::span<const NormedProjection> products, Activation activation) {
  if (LayerNormSteps* const fused = FusedSteps(ctx, norm); fused != nullptr) {
    std::vector<NormedProductsStepArgs::Product> of_step;
    for (const auto& [projection, y] : products) of_step.push_back({AsStep(projection), y});
    if (fused->NormedProductsStep({.norm = AsStep(norm),
                                   .hidden = hidden,
                                   .products = of_step,
                                   .activation = activation})) {
      return;
    }
  }
  const Workspace::Scope scope(ctx.workspace);
  std::vector<std::span<const PackedMatrix>> weights;
  for (const NormedProjection& product : products) weights.push_back(product.projection.weights);
  const TensorView x = ctx.TempForProducts(hidden.shape, weights);
  ApplyNorm(ctx.kernels(), norm, hidden, x);
  std::vector<ProjectionArgs> projections;
  std::vector<ActivateArgs> activations;
  for (const auto& [projection, y] : products) {
    const TensorView raw = activation == Activation::kIdentity ? y : ctx.Temp(y.shape);
    projections.push_back({.projection = projection, .x = x, .y = raw});
    activations.push_back({.x = raw, .activation = activation, .y = y});
  }
  Project(ctx.kernels(), projections);
  if (activation != Activation::kIdentity) ctx.kernels().Activate(activations);
}

void ProjectNormed(ForwardContext& ctx, const NormedInput& input, const TensorView& x,
                   std::span<const ProjectionArgs> products) {
  LayerNormSteps* const fused =
      IsDecodeStep(ctx) && input.norm != nullptr ? LayerNormStepsOf(ctx.kernels()) : nullptr;
  if (fused != nullptr) {
    std::vector<NormedProductsStepArgs::Product> of_step;
    for (const ProjectionArgs& args : products) {
      of_step.push_back({AsStep(args.projection), args.y});
    }
    if (fused->NormedProductsStep(
            {.norm = AsStep(*input.norm), .hidden = input.hidden, .products = of_step})) {
      return;
    }
  }
  if (input.norm != nullptr) ApplyNorm(ctx.kernels(), *input.norm, input.hidden, x);
  Project(ctx.kernels(), products);
}

void AddProjection(ForwardContext& ctx, const Projection& projection, const TensorView& x,
                   const TensorView& hidden) {
  if (AddsFused(ctx, {.x = x, .product = AsStep(projection), .hidden = hidden})) return;
  AddProjection(ctx.kernels(), projection, x, hidden);
}

void AddProjectionFrom(ForwardContext& ctx, const Projection& projection, const TensorView& x,
                       const TensorView& positions, int64_t first, const TensorView& hidden) {
  if (AddsFused(ctx, {.x = x,
                      .product = AsStep(projection),
                      .positions = positions,
                      .first = first,
                      .hidden = hidden})) {
    return;
  }
  const Workspace::Scope scope(ctx.workspace);
  const TensorView y = ctx.Temp(hidden.shape);
  Project(ctx.kernels(), {{.projection = projection, .x = x, .y = y}});
  ctx.kernels().AddFrom({.x = y, .positions = positions, .first = first, .y = hidden});
}

TensorView TempForStep(const ForwardContext& ctx, int64_t dim, const Projection& projection) {
  const Shape shape{ctx.batch.tokens, dim};
  return IsDecodeStep(ctx) ? ctx.TempForProducts(shape, {projection.weights}) : ctx.Temp(shape);
}

}  // namespace mneme
