// Products of a residual stream with what is done before and behind them: as fused operations in
// steps of decode rows, where the backend has them (kernels/layer_norm_step.h), else part by part.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>

#include "kernels/kernels.h"
#include "kernels/layer_norm_step.h"
#include "kernels/tensor_view.h"
#include "models/forward_context.h"
#include "models/norm.h"
#include "models/projection.h"

namespace mneme {

// The fused operations of a step, or null: where a row may have more than one token, or the norm is
// another.
LayerNormSteps* FusedSteps(const ForwardContext& ctx, const Norm& norm);
// A norm and a projection as those operations take them.
StepNorm AsStep(const Norm& norm);
StepProduct AsStep(const Projection& projection);

struct NormedProjection {
  const Projection& projection;  // [out, model_dim] for all tokens
  TensorView y;                  // [tokens, out] act, or, of an activation, as LinearArgs::x
};

// y_i = activation( W_i Norm(hidden) (+ bias) )
void ProjectNormed(ForwardContext& ctx, const Norm& norm, const TensorView& hidden,
                   std::span<const NormedProjection> products,
                   Activation activation = Activation::kIdentity);
inline void ProjectNormed(ForwardContext& ctx, const Norm& norm, const TensorView& hidden,
                          std::initializer_list<NormedProjection> products,
                          Activation activation = Activation::kIdentity) {
  ProjectNormed(ctx, norm, hidden, std::span(products.begin(), products.size()), activation);
}

// How the input of products is still to be made: as `norm` of `hidden`; no norm: it is there.
struct NormedInput {
  const Norm* norm = nullptr;
  TensorView hidden;  // [tokens, model_dim] act
};
// Makes x, their input, and does Project(). A backend that does both at once leaves x as it is.
void ProjectNormed(ForwardContext& ctx, const NormedInput& input, const TensorView& x,
                   std::span<const ProjectionArgs> products);

// hidden += W x (+ bias)
// x  [tokens, in] as LinearArgs::x
void AddProjection(ForwardContext& ctx, const Projection& projection, const TensorView& x,
                   const TensorView& hidden);
// The same of tokens at `positions`, [tokens] i64, from `first` on.
void AddProjectionFrom(ForwardContext& ctx, const Projection& projection, const TensorView& x,
                       const TensorView& positions, int64_t first, const TensorView& hidden);

// A temporary [tokens, dim] for what a kernel reads for `projection` alone: rounded for the product
// in steps of decode rows.
TensorView TempForStep(const ForwardContext& ctx, int64_t dim, const Projection& projection);

}  // namespace mneme
