// The part of a layer that transforms each token by itself: a gated MLP.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/decode_step.h"
#include "kernels/tensor_view.h"
#include "models/forward_context.h"
#include "models/layer_builder.h"

namespace mneme {

//   residual += down( silu(gate x) * (up x) )
class FeedForward {
 public:
  // Weights mlp.{gate,up,down}_proj. Old files have no up_proj: there gate_proj is [2 mlp_dim,
  // model_dim], the gate's rows first.
  static absl::StatusOr<FeedForward> Make(const LayerBuilder& builder);

  // hidden += FeedForward(RmsNorm(hidden)).   hidden  [tokens, model_dim] act
  void Forward(ForwardContext& ctx, const Norm& norm, TensorView hidden) const;
  // The same as arguments of a fused operation.
  FeedForwardStepArgs StepArgs(const Norm& norm, TensorView hidden) const;

 private:
  PackedMatrix gate_, up_, down_;
};

}  // namespace mneme
