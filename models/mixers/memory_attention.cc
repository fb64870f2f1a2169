#include "models/mixers/memory_attention.h"

#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/mixers/entry_streams.h"
#include "models/step_products.h"

namespace mneme {

absl::StatusOr<MemoryAttention> MemoryAttention::Make(const LayerBuilder& builder,
                                                      const EngramConfig& config, Tensors tensors) {
  MemoryAttention attention;
  attention.layer_ = builder.layer - config.first_layer;
  attention.heads_ = config.heads;
  attention.head_dim_ = builder.model_dim / config.heads;
  MNEME_RETURN_IF_ERROR(tensors == Tensors::kConv1d ? attention.TakeConv1d(builder)
                                                    : attention.TakeBert(builder));
  StateField field = {.name = "engram_keys",
                      .dtype = builder.network.state_format.context_dtype,
                      .shape = {1, config.rules.attended(), config.heads, attention.head_dim_},
                      .traffic = StateTraffic::kRead};
  attention.keys_ = builder.AddState(field);
  field.name = "engram_values";
  attention.values_ = builder.AddState(field);
  return attention;
}

absl::Status MemoryAttention::TakeConv1d(const LayerBuilder& builder) {
  const int dim = builder.model_dim;
  MNEME_ASSIGN_OR_RETURN(query_, TakeProjection(builder, "memory_attention.q_attn", dim, dim,
                                                Bias::kAdded, MatrixOrder::kInOut));
  MNEME_ASSIGN_OR_RETURN(
      std::vector<Projection> parts,
      TakeProjectionParts(builder, "memory_attention.c_attn", std::array{dim, dim}, dim,
                          Bias::kAdded, MatrixOrder::kInOut));
  key_ = std::move(parts[0]);
  value_ = std::move(parts[1]);
  MNEME_ASSIGN_OR_RETURN(output_, TakeProjection(builder, "memory_attention.c_proj", dim, dim,
                                                 Bias::kAdded, MatrixOrder::kInOut));
  return absl::OkStatus();
}

absl::Status MemoryAttention::TakeBert(const LayerBuilder& builder) {
  const int dim = builder.model_dim;
  for (const auto& [projection, name] :
       {std::pair(&query_, "self.query"), std::pair(&key_, "self.key"),
        std::pair(&value_, "self.value"), std::pair(&output_, "output.dense")}) {
    MNEME_ASSIGN_OR_RETURN(
        *projection,
        TakeProjection(builder, absl::StrCat("memory_attention.", name), dim, dim, Bias::kAdded));
  }
  return absl::OkStatus();
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

EngramAttentionArgs MemoryAttention::Args(const ForwardContext& ctx, const EngramMemory& memory,
                                          Engrams which, const TensorView& q,
                                          const TensorView& read) const {
  const EngramConfig& config = memory.config();
  const bool recalled = which == Engrams::kRecalled;
  return {.q = ByHead(q, heads_),
          .row_offsets = ctx.batch.row_offsets,
          .slots = ctx.batch.slots,
          .positions = ctx.batch.positions,
          .segment = config.segment,
          .scale = 1.0f / std::sqrt(static_cast<float>(head_dim_)),
          .keys = ctx.State(keys_),
          .values = ctx.State(values_),
          .first = recalled ? config.rules.working : 0,
          .most = recalled ? config.rules.recalled() : config.rules.working,
          .facts = memory.Store(ctx).facts,
          .counted = recalled ? kEngramsRecalled : kEngramsWorking,
          .sums = recalled ? memory.Weights(ctx) : StateView{},
          .layer = layer_,
          .recalled = config.rules.recalled(),
          .out = ByHead(read, heads_)};
}

void MemoryAttention::Read(ForwardContext& ctx, const EngramMemory& memory, Engrams which,
                           const TensorView& x, const TensorView& read) const {
  const Workspace::Scope scope(ctx.workspace);
  const TensorView q = ctx.Temp(read.shape);
  Project(ctx.kernels(), {{.projection = query_, .x = x, .y = q}});
  ctx.kernels().EngramAttention(Args(ctx, memory, which, q, read));
}

void MemoryAttention::Forward(ForwardContext& ctx, const EngramMemory& memory, Engrams which,
                              const Norm& norm, const TensorView& hidden) const {
  const Workspace::Scope scope(ctx.workspace);
  const TensorView q = ctx.Temp(hidden.shape);
  const TensorView read = TempForStep(ctx, hidden.shape[1], output_);
  const EngramAttentionArgs engrams = Args(ctx, memory, which, q, read);
  LayerNormSteps* const fused = FusedSteps(ctx, norm);
  if (fused == nullptr ||
      !fused->EngramReadStep(
          {.norm = AsStep(norm), .hidden = hidden, .q = AsStep(query_), .engrams = engrams})) {
    ProjectNormed(ctx, norm, hidden, {{.projection = query_, .y = q}});
    ctx.kernels().EngramAttention(engrams);
  }
  AddProjectionFrom(ctx, output_, read, ctx.row_index.token_positions, memory.config().segment,
                    hidden);
}

}  // namespace mneme
