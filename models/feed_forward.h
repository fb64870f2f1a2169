// The part of a block that transforms each token by itself, or, in RWKV, with the one before it.
#pragma once

#include <optional>

#include "kernels/decode_step.h"
#include "kernels/tensor_view.h"
#include "models/forward_context.h"

namespace mneme {

class FeedForward {
 public:
  virtual ~FeedForward() = default;

  // Whether Forward() reads ForwardContext::row_index. Whoever keeps state adds its fields when it
  // is made (LayerBuilder::AddState), zeros at first.
  virtual bool uses_row_index() const { return false; }

  // hidden += FeedForward(Norm(hidden)); reads and updates the state, if there is some, of every
  // row in `ctx.batch`.   hidden  [tokens, model_dim] act
  virtual void Forward(ForwardContext& ctx, const Norm& norm, TensorView hidden) const = 0;

  // As of SequenceMixer.
  virtual std::optional<GatedFeedForward> Fused(const Norm&) const { return std::nullopt; }
};

}  // namespace mneme
