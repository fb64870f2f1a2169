#include "models/mixers/memory_attention.h"

#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "models/mixers/entry_streams.h"

namespace mneme {

absl::StatusOr<MemoryAttention> MemoryAttention::Make(const LayerBuilder& builder,
                                                      const EngramConfig& config) {
  const int dim = builder.model_dim;
  MemoryAttention attention;
  attention.layer_ = builder.layer;
  attention.heads_ = config.heads;
  attention.head_dim_ = dim / config.heads;
  MNEME_ASSIGN_OR_RETURN(attention.query_, TakeProjection(builder, "memory_attention.q_attn", dim,
                                                          dim, Bias::kAdded, MatrixOrder::kInOut));
  MNEME_ASSIGN_OR_RETURN(
      std::vector<Projection> parts,
      TakeProjectionParts(builder, "memory_attention.c_attn", std::array{dim, dim}, dim,
                          Bias::kAdded, MatrixOrder::kInOut));
  attention.key_ = std::move(parts[0]);
  attention.value_ = std::move(parts[1]);
  MNEME_ASSIGN_OR_RETURN(attention.output_, TakeProjection(builder, "memory_attention.c_proj", dim,
                                                           dim, Bias::kAdded, MatrixOrder::kInOut));
  StateField field = {.name = "engram_keys",
                      .dtype = builder.network.state_format.context_dtype,
                      .shape = {1, config.rules.attended(), config.heads, attention.head_dim_}};
  attention.keys_ = builder.AddState(field);
  field.name = "engram_values";
  attention.values_ = builder.AddState(field);
  return attention;
}

void MemoryAttention::Begin(ForwardContext& ctx, const AttendedEngrams& engrams) const {
  const Workspace::Scope scope(ctx.workspace);
  const TensorView k = ctx.Temp(engrams.x.shape), v = ctx.Temp(engrams.x.shape);
  const auto product = [&](const Projection& projection, const TensorView& y) -> LinearArgs {
    return {.x = engrams.x,
            .weights = projection.weights,
            .group_offsets = engrams.offsets,
            .y = y,
            .bias = projection.bias};
  };
  const LinearArgs products[] = {product(key_, k), product(value_, v)};
  ctx.kernels().Linear(products);
  ctx.kernels().StoreEngramContext({.crossings = engrams.crossings,
                                    .k = ByHead(k, heads_),
                                    .v = ByHead(v, heads_),
                                    .keys = ctx.State(keys_),
                                    .values = ctx.State(values_)});
}

void MemoryAttention::Forward(ForwardContext& ctx, const EngramMemory& memory, Engrams which,
                              const Norm& norm, const TensorView& hidden) const {
  const Workspace::Scope scope(ctx.workspace);
  EngramKernels& kernels = ctx.kernels();
  const EngramConfig& config = memory.config();
  const bool recalled = which == Engrams::kRecalled;
  const TensorView x = ctx.Normed(norm, hidden, {query_.weights});
  const TensorView q = ctx.Temp(hidden.shape), read = ctx.Temp(hidden.shape);
  Project(ctx.kernels(), {{.projection = query_, .x = x, .y = q}});
  kernels.EngramAttention({.q = ByHead(q, heads_),
                           .row_offsets = ctx.batch.row_offsets,
                           .slots = ctx.batch.slots,
                           .positions = ctx.batch.positions,
                           .segment = config.segment,
                           .scale = 1.0f / std::sqrt(static_cast<float>(head_dim_)),
                           .keys = ctx.State(keys_),
                           .values = ctx.State(values_),
                           .first = recalled ? config.rules.working : 0,
                           .count = recalled ? config.rules.recalled() : config.rules.working,
                           .facts = recalled ? memory.Store(ctx).facts : StateView{},
                           .sums = recalled ? memory.Weights(ctx) : StateView{},
                           .layer = layer_,
                           .recalled = config.rules.recalled(),
                           .out = ByHead(read, heads_)});
  const TensorView y = ctx.Temp(hidden.shape);
  Project(ctx.kernels(), {{.projection = output_, .x = read, .y = y}});
  kernels.AddFrom(
      {.x = y, .positions = ctx.row_index.token_positions, .first = config.segment, .y = hidden});
}

}  // namespace mneme
