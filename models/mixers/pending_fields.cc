#include "models/mixers/pending_fields.h"

#include <algorithm>
#include <string>

#include "kernels/held_rules.h"

namespace mneme {

PendingFields::PendingFields(const LayerBuilder& builder)
    : PendingFields(builder, builder.network.state_format.pending_writes) {}

PendingFields::PendingFields(const LayerBuilder& builder, int capacity) : capacity_(capacity) {
  if (capacity_ > 0) phase_ = builder.network.state.AddPhase(capacity_ + 1);
}

void PendingFields::Add(const LayerBuilder& builder, const StateField& matrices,
                        const Sizes& sizes) {
  sizes_ = sizes;
  if (capacity_ == 0) return;
  const auto add = [&](const char* name, DType dtype, Shape shape) {
    return builder.AddState({.name = name,
                             .dtype = dtype,
                             .shape = shape,
                             .guard = matrices.guard,
                             .role = StateRole::kHeldBack,
                             .flags = matrices.flags,
                             .writes = capacity_});
  };
  const DType term = PendingDType(matrices.dtype);
  const int memories = sizes.memories;
  range_ = add("pending_range", DType::kI32, {memories, 2});
  keys_ = add("pending_keys", term, {memories, capacity_, sizes.heads * sizes.key_dim});
  updates_ =
      add("pending_updates", term, {memories, capacity_, sizes.value_heads * sizes.value_dim});
  const int decays = sizes.value_heads * (sizes.key_decays ? sizes.key_dim : 1);
  decay_ = add("pending_decay", DType::kF32, {memories, capacity_, decays});
}

PendingFields PendingFields::Of(const LayerBuilder& builder, const MatrixRule& rule, int key_dim,
                                int value_dim) {
  const DType dtype = builder.network.state_format.memory_dtype;
  const int most = builder.network.state_format.pending_writes;
  return HoldsBack(rule, key_dim, value_dim, dtype)
             ? PendingFields(builder, std::min<int>(most, kHeldWrites))
             : PendingFields();
}

PendingWrites PendingFields::View(const Slabs& slabs) const {
  if (capacity_ == 0) return {};
  return {.capacity = capacity_,
          .phase = slabs.View(phase_),
          .range = slabs.View(range_),
          .keys = slabs.View(keys_),
          .updates = slabs.View(updates_),
          .log_decay = slabs.View(decay_)};
}

void PendingFields::Settle(ForwardContext& ctx, const TensorView& slots, const StateField& matrices,
                           const StateView& written) const {
  if (capacity_ == 0) return;
  ctx.kernels().SettleMemories({.slots = slots,
                                .memories = sizes_.memories,
                                .written = written,
                                .heads = sizes_.heads,
                                .key_dim = sizes_.key_dim,
                                .value_heads = sizes_.value_heads,
                                .value_dim = sizes_.value_dim,
                                .state = ctx.State(matrices),
                                .pending = View(ctx.slabs)});
}

}  // namespace mneme
