#include "models/mixers/prefix_attention.h"

#include <cmath>

#include "base/status_macros.h"
#include "kernels/stream_steps.h"
#include "models/mixers/entry_streams.h"
#include "models/mixers/rope_frequencies.h"

namespace mneme {

absl::StatusOr<PrefixAttention> PrefixAttention::Make(const LayerBuilder& builder,
                                                      const PrefixAttentionConfig& config) {
  const int channels = config.heads * config.head_dim, model_dim = builder.model_dim;
  Weights& weights = builder.weights();
  PrefixAttention attention;
  attention.config_ = config;
  MNEME_ASSIGN_OR_RETURN(attention.q_proj_,
                         TakeProjection(builder, "attention.q_proj", channels, model_dim));
  MNEME_ASSIGN_OR_RETURN(attention.k_proj_,
                         TakeProjection(builder, "attention.k_proj", channels, model_dim));
  MNEME_ASSIGN_OR_RETURN(attention.v_proj_,
                         TakeProjection(builder, "attention.v_proj", channels, model_dim));
  MNEME_ASSIGN_OR_RETURN(attention.o_proj_,
                         TakeProjection(builder, "attention.o_proj", model_dim, channels));
  MNEME_ASSIGN_OR_RETURN(attention.frequencies_,
                         TakeExactFrequencies(weights, config.rope_theta, config.head_dim));
  const bool f64 = builder.network.state_format.memory_dtype == DType::kF64;
  const Shape prefix{config.prefix, config.heads, config.head_dim};
  MNEME_ASSIGN_OR_RETURN(attention.prefix_keys_,
                         weights.Reserve(f64 ? DType::kF64 : DType::kF32, prefix));
  MNEME_ASSIGN_OR_RETURN(attention.prefix_values_,
                         weights.Reserve(f64 ? DType::kF64 : DType::kF32, prefix));

  attention.context_ = AttentionContext(
      builder, {.heads = config.heads, .head_dim = config.head_dim, .ring = config.window});
  return attention;
}

void PrefixAttention::Attend(ForwardContext& ctx, const TensorView& x, const TensorView& y,
                             bool accumulate, const NormedInput& normed) const {
  const Workspace::Scope scope(ctx.workspace);
  Kernels& kernels = ctx.kernels();
  const Shape channels{x.shape[0], int64_t{config_.heads} * config_.head_dim};
  const TensorView q = ctx.Temp(channels), k = ctx.Temp(channels), v = ctx.Temp(channels);
  const ProjectionArgs products[] = {{.projection = q_proj_, .x = x, .y = q},
                                     {.projection = k_proj_, .x = x, .y = k},
                                     {.projection = v_proj_, .x = x, .y = v}};
  ProjectNormed(ctx, normed, x, products);
  const TensorView query = ByHead(q, config_.heads), key = ByHead(k, config_.heads);
  // As much of it as there is: while it is prepared, the rows before this one.
  TensorView prefix_keys = prefix_keys_, prefix_values = prefix_values_;
  prefix_keys.shape.dims[0] = prefix_values.shape.dims[0] = ctx.prefix;
  if (ctx.prefix == 0) prefix_keys = prefix_values = {};
  TensorView read = ctx.batch.longest_row == 1 ? ctx.TempForProducts(channels, {o_proj_.weights})
                                               : ctx.Temp(channels);
  read = ByHead(read, config_.heads);
  AttentionArgs attention = context_.Args(ctx, query, key, ByHead(v, config_.heads), read);
  attention.window = context_.is_ring() ? config_.window : 0;
  attention.scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
  attention.prefix_keys = prefix_keys;
  attention.prefix_values = prefix_values;
  RopeArgs rope = {.positions = ctx.row_index.token_positions,
                   .frequencies = frequencies_,
                   .interleaved = config_.rope_interleaved};
  // Rows and positions come before the embedding, which nothing overlaps.
  StreamSteps* const steps = ctx.prepares ? nullptr : StreamStepsOf(kernels);
  if (steps == nullptr ||
      !steps->TurnedAttention({.mix = {}, .rope = rope, .attention = attention, .settled = true})) {
    for (const TensorView& turned : {query, key}) {
      rope.x = rope.y = turned;
      kernels.Rope(rope);
    }
    kernels.Attention(attention);
  }
  if (ctx.prepares) {
    const int64_t bytes = k.bytes();
    ctx.backend.Copy(prefix_keys_.as<std::byte>() + ctx.prefix * bytes, k.data, bytes);
    ctx.backend.Copy(prefix_values_.as<std::byte>() + ctx.prefix * bytes, v.data, bytes);
  }
  const LinearArgs output[] = {
      {.x = Flat(read), .weights = o_proj_.weights, .y = y, .accumulate = accumulate}};
  kernels.Linear(output);
}

}  // namespace mneme
