#include "models/mixers/attention_context.h"

namespace mneme {

AttentionContext::AttentionContext(const LayerBuilder& builder, const Sizes& sizes) {
  const int most = builder.network.max_context;
  const bool ring = sizes.always_ring || (sizes.ring > 0 && sizes.ring <= most);
  StateField field = {.name = "keys",
                      .dtype = builder.network.state_format.context_dtype,
                      .shape = {1, ring ? sizes.ring : most, sizes.heads, sizes.head_dim},
                      .guard = ring ? StateGuard::kRing : StateGuard::kFirstRows,
                      .role = StateRole::kAppendOnly,
                      .inserted = sizes.inserted};
  keys_ = builder.AddState(field);
  field.name = "values";
  values_ = builder.AddState(field);
}

AttentionArgs AttentionContext::Args(const ForwardContext& ctx, const TensorView& q,
                                     const TensorView& k, const TensorView& v,
                                     const TensorView& out) const {
  return {.q = q,
          .k = k,
          .v = v,
          .row_offsets = ctx.batch.row_offsets,
          .slots = ctx.batch.slots,
          .positions = ctx.batch.positions,
          .longest_row = ctx.batch.longest_row,
          .keys = ctx.Context(keys_),
          .values = ctx.Context(values_),
          .out = out};
}

}  // namespace mneme
