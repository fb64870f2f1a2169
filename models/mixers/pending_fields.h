// The state of writes that memories hold back, where the device does so.
#pragma once

#include "kernels/kernels.h"
#include "kernels/pending_writes.h"
#include "models/forward_context.h"
#include "models/layer_builder.h"
#include "models/state_layout.h"

namespace mneme {

class PendingFields {
 public:
  struct Sizes {
    int memories = 1, heads = 0, key_dim = 0, value_heads = 0, value_dim = 0;
    bool key_decays = false;  // kernels/held_rules.h
  };

  PendingFields() = default;
  // Adds the sessions' phase, if the device holds writes back: before a layer's other fields.
  explicit PendingFields(const LayerBuilder& builder);

  // The same under another rule than the gated delta rule, of memories that HoldsBack().
  static PendingFields Of(const LayerBuilder& builder, const MatrixRule& rule, int key_dim,
                          int value_dim);

  // Adds the rest, beside matrices of `matrices`, of which guard and flags are theirs, too.
  void Add(const LayerBuilder& builder, const StateField& matrices, const Sizes& sizes);

  // Capacity 0 where nothing is held back.
  PendingWrites View(const Slabs& slabs) const;
  // SettleMemories of `matrices`. `written`: as SettleArgs has it.
  void Settle(ForwardContext& ctx, const TensorView& slots, const StateField& matrices,
              const StateView& written) const;

 private:
  PendingFields(const LayerBuilder& builder, int capacity);

  Sizes sizes_;
  int capacity_ = 0;
  StateField phase_, range_, keys_, updates_, decay_;
};

}  // namespace mneme
