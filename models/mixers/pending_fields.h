// The state of writes that memories hold back, where the device does so.
#pragma once

#include "kernels/pending_writes.h"
#include "models/forward_context.h"
#include "models/layer_builder.h"
#include "models/state_layout.h"

namespace mneme {

class PendingFields {
 public:
  struct Sizes {
    int memories = 1, heads = 0, key_dim = 0, value_heads = 0, value_dim = 0;
  };

  PendingFields() = default;
  // Adds the sessions' phase, if the device holds writes back: before a layer's other fields.
  explicit PendingFields(const LayerBuilder& builder);

  // Adds the rest, beside matrices of `matrices`, of which guard and flags are theirs, too.
  void Add(const LayerBuilder& builder, const StateField& matrices, const Sizes& sizes);

  // Capacity 0 where nothing is held back.
  PendingWrites View(const ForwardContext& ctx) const;
  // SettleMemories of `matrices`. `written`: as SettleArgs has it.
  void Settle(ForwardContext& ctx, const TensorView& slots, const StateField& matrices,
              const StateView& written) const;

 private:
  Sizes sizes_;
  int capacity_ = 0;
  StateField phase_, range_, keys_, updates_, decay_;
};

}  // namespace mneme
