// The keys and values of a layer with attention, as a session keeps them.
#pragma once

#include "kernels/ops/attention.h"
#include "models/forward_context.h"
#include "models/layer_builder.h"
#include "models/state_layout.h"

namespace mneme {

class AttentionContext {
 public:
  struct Sizes {
    int heads = 1, head_dim = 1;  // of keys and values
    // Rows of a ring, where that is no longer than NetworkBuilder::max_context; 0: rows of the
    // first max_context positions.
    int ring = 0;
    bool always_ring = false;  // however long it is
    InsertedPositions inserted;
  };

  AttentionContext() = default;
  // Adds the fields "keys" and "values".
  AttentionContext(const LayerBuilder& builder, const Sizes& sizes);

  bool is_ring() const { return keys_.guard == StateGuard::kRing; }

  // Attention of the step's tokens to themselves and to what is kept, by its tensors alone:
  // window, scale and a prefix are still to be set.
  AttentionArgs Args(const ForwardContext& ctx, const TensorView& q, const TensorView& k,
                     const TensorView& v, const TensorView& out) const;

 private:
  StateField keys_, values_;
};

}  // namespace mneme
