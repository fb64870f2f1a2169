// The part of a block that transforms each token by itself.
#pragma once

#include <optional>

#include "kernels/decode_step.h"
#include "kernels/tensor_view.h"
#include "models/forward_context.h"

namespace mneme {

class FeedForward {
 public:
  virtual ~FeedForward() = default;

  // hidden += FeedForward(RmsNorm(hidden)).   hidden  [tokens, model_dim] act
  virtual void Forward(ForwardContext& ctx, const Norm& norm, TensorView hidden) const = 0;

  // The same as arguments of a fused operation. Empty: there is none.
  virtual std::optional<FeedForwardStepArgs> StepArgs(const Norm&, TensorView /*hidden*/) const {
    return std::nullopt;
  }
};

}  // namespace mneme
