#include "models/mixers/persistent_attention.h"

#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "kernels/stream_steps.h"
#include "kernels/tensor.h"
#include "models/mixers/entry_streams.h"
#include "models/mixers/rope_frequencies.h"

namespace mneme {
namespace {

// Stored [2, heads, rows, dim]; as [2 rows, heads * dim].
absl::StatusOr<TensorView> TakePersistent(const LayerBuilder& builder, int heads, int rows,
                                          int dim) {
  const std::string name = builder.Weight("5.persistent_memory");
  MNEME_ASSIGN_OR_RETURN(
      const std::vector<float> stored,
      builder.weights().Values(name, {2, heads, rows, dim}, WeightInit::kNormal));
  std::vector<float> ordered(stored.size());
  size_t at = 0;
  for (int part = 0; part < 2; ++part) {
    for (int head = 0; head < heads; ++head) {
      for (int row = 0; row < rows; ++row) {
        for (int i = 0; i < dim; ++i) {
          const int to = ((part * rows + row) * heads + head) * dim + i;
          ordered[static_cast<size_t>(to)] = stored[at++];
        }
      }
    }
  }
  MNEME_ASSIGN_OR_RETURN(TensorView persistent, builder.weights().Constant(ordered));
  persistent.shape = {2 * rows, int64_t{heads} * dim};
  return persistent;
}

}  // namespace

absl::StatusOr<PersistentAttention> PersistentAttention::Make(
    const LayerBuilder& builder, const PersistentAttentionConfig& config) {
  Weights& weights = builder.weights();
  const int channels = config.heads * config.head_dim, model_dim = builder.model_dim;
  PersistentAttention attention;
  attention.config_ = config;
  MNEME_ASSIGN_OR_RETURN(attention.norm_, TakeNorm(weights, builder.prefix, {"5.norm.weight"},
                                                   model_dim, builder.norm_eps));
  const int parts[] = {channels, channels, channels};
  MNEME_ASSIGN_OR_RETURN(std::vector<Projection> qkv,
                         TakeProjectionParts(builder, "5.to_qkv", parts, model_dim));
  attention.q_ = std::move(qkv[0]);
  attention.k_ = std::move(qkv[1]);
  attention.v_ = std::move(qkv[2]);
  if (builder.layer > 0) {
    MNEME_ASSIGN_OR_RETURN(
        attention.value_mix_,
        TakeProjection(builder, "5.to_learned_v_mix.0", config.heads, model_dim, Bias::kAdded));
  }
  MNEME_ASSIGN_OR_RETURN(attention.out_, TakeProjection(builder, "5.to_out", model_dim, channels));
  const std::string frequencies = builder.Weight("5.rotary_emb.freqs");
  MNEME_ASSIGN_OR_RETURN(
      attention.frequencies_,
      weights.Has(frequencies)
          ? TakeStoredFrequencies(weights, frequencies, config.rope_theta, config.head_dim)
          : TakeExactFrequencies(weights, config.rope_theta, config.head_dim));
  if (config.persistent == 0) {
    MNEME_RETURN_IF_ERROR(IgnoreEmpty(weights, builder.Weight("5.persistent_memory"),
                                      {2, config.heads, 0, config.head_dim}));
  } else {
    MNEME_ASSIGN_OR_RETURN(
        attention.persistent_,
        TakePersistent(builder, config.heads, config.persistent, config.head_dim));
    const bool f64 = builder.network.state_format.memory_dtype == DType::kF64;
    MNEME_ASSIGN_OR_RETURN(
        attention.persistent_rows_,
        weights.Reserve(f64 ? DType::kF64 : DType::kF32, attention.persistent_.shape));
  }
  attention.context_ = AttentionContext(builder, {.heads = config.heads,
                                                  .head_dim = config.head_dim,
                                                  .ring = config.window + config.segment,
                                                  .always_ring = true,
                                                  .inserted = config.inserted});
  return attention;
}

absl::Status PersistentAttention::Prepare(Backend& backend) const {
  const int64_t rows = persistent_.shape[0];
  if (config_.persistent == 0) return absl::OkStatus();
  std::vector<int32_t> numbers(static_cast<size_t>(rows));
  std::iota(numbers.begin(), numbers.end(), 0);
  MNEME_ASSIGN_OR_RETURN(const Tensor ids, Tensor::Allocate(backend, DType::kI32, {rows}));
  backend.CopyFromHost(ids.view().data, numbers.data(), ids.view().bytes());
  backend.kernels().Embedding({.ids = ids.view(), .table = persistent_, .y = persistent_rows_});
  return backend.Synchronize();
}

void PersistentAttention::Want(BranchWants& wants) const {
  BranchWants::Normed& normed = wants.normed[0];
  normed.norm = &norm_;
  for (const Projection* projection : {&q_, &k_, &v_, &value_mix_}) {
    if (projection->exists()) normed.products.push_back(projection->weights);
  }
}

void PersistentAttention::Attend(ForwardContext& ctx, const TensorView& x,
                                 const TensorView& y) const {
  const Workspace::Scope scope(ctx.workspace);
  Kernels& kernels = ctx.kernels();
  const int64_t tokens = x.shape[0], channels = int64_t{config_.heads} * config_.head_dim;
  const bool first = !value_mix_.exists();
  const TensorView q = ctx.Temp({tokens, channels}), k = ctx.Temp({tokens, channels});
  const TensorView v = first ? ctx.first_values : ctx.Temp({tokens, channels});
  std::vector<LinearArgs> products = {{.x = x, .weights = q_.weights, .y = q},
                                      {.x = x, .weights = k_.weights, .y = k},
                                      {.x = x, .weights = v_.weights, .y = v}};
  ValueResidualArgs mix;
  if (!first) {
    mix = {.first = ctx.first_values,
           .gate = ctx.Temp({tokens, config_.heads}),
           .bias = value_mix_.bias,
           .v = v};
    mix.bias.shape = {config_.heads};
    products.push_back({.x = x, .weights = value_mix_.weights, .y = mix.gate});
  }
  kernels.Linear(products);

  RopeArgs rope = {
      .positions = ctx.row_index.token_positions, .frequencies = frequencies_, .interleaved = true};
  const TensorView query = ByHead(q, config_.heads), key = ByHead(k, config_.heads);
  // Answers to a few tokens a row may be left in the type that the product takes.
  TensorView read = ctx.TempForProducts({tokens, channels}, {out_.weights});
  AttentionArgs attention =
      context_.Args(ctx, query, key, ByHead(v, config_.heads), ByHead(read, config_.heads));
  attention.window = config_.window;
  attention.segment = config_.segment;
  attention.scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
  if (config_.persistent > 0) {
    TensorView& keys = attention.prefix_keys;
    TensorView& values = attention.prefix_values;
    keys = values = persistent_rows_;
    keys.shape = values.shape = {config_.persistent, config_.heads, config_.head_dim};
    values.data = keys.as<std::byte>() + keys.bytes();
  }
  // Rows and positions come before the positions' own network, which nothing overlaps.
  StreamSteps* const steps = StreamStepsOf(kernels);
  const auto is_turned = [&] {
    return steps != nullptr &&
           steps->TurnedAttention(
               {.mix = mix, .rope = rope, .attention = attention, .settled = true});
  };
  bool turned = is_turned();
  if (!turned && ctx.batch.longest_row != 1 && read.dtype != ctx.backend.activation_dtype()) {
    read = ctx.Temp({tokens, channels});
    attention.out = ByHead(read, config_.heads);
    turned = is_turned();
  }
  if (!turned) {
    if (!first) kernels.ValueResidual(mix);
    for (const TensorView& x : {query, key}) {
      rope.x = rope.y = x;
      kernels.Rope(rope);
    }
    kernels.Attention(attention);
  }
  const LinearArgs output[] = {{.x = read, .weights = out_.weights, .y = y}};
  kernels.Linear(output);
}

}  // namespace mneme
