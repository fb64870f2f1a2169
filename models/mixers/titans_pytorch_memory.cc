#include "models/mixers/titans_pytorch_memory.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/mixers/entry_streams.h"
#include "models/mixers/memory_fields.h"

namespace mneme {
namespace {

using Pooling = TitansPytorchMemoryConfig::Pooling;

// Where the checkpoint has a tensor of the network: the gain first.
int StoredIndex(const MemoryNetwork& network, int tensor) {
  if (!network.trains_gain) return tensor;
  return tensor == network.gain() ? 0 : tensor + 1;
}

std::vector<MemoryTensorName> TensorNames(const TitansPytorchMemoryConfig& config) {
  const TrainedMemoryConfig& memory = config.memory;
  std::vector<MemoryTensorName> names;
  for (int t = 0; t < memory.network.tensors(); ++t) {
    const std::string field =
        absl::StrCat("memory_model_parameters.", StoredIndex(memory.network, t));
    Shape stored = memory.network.shape(t, memory.dim);
    if (!config.same_start) {
      stored = stored.rank == 2 ? Shape{memory.heads, stored[0], stored[1]}
                                : Shape{memory.heads, stored[0]};
    }
    names.push_back({.weight = absl::StrCat("4.", field), .stored = stored, .field = field});
  }
  return names;
}

// What the memory's network was made as: upstream trains copies of it.
void IgnoreTemplate(const LayerBuilder& builder, const MemoryNetwork& network) {
  const char* const matrices =
      network.trains_gain ? "4.memory_model.model.weights." : "4.memory_model.weights.";
  for (int l = 0; l < network.depth; ++l) {
    builder.weights().Ignore(builder.Weight(absl::StrCat(matrices, l)));
  }
  builder.weights().Ignore(builder.Weight("4.memory_model.norm.gamma"));
}

// Offsets from 1, stored [heads, 1, dim], each for `keys` heads of what is normed.
absl::StatusOr<TensorView> TakeHeadNorm(const LayerBuilder& builder, const char* name, int heads,
                                        int dim, int keys) {
  MNEME_ASSIGN_OR_RETURN(
      const std::vector<float> gamma,
      builder.weights().Values(builder.Weight(name), {heads, 1, dim}, WeightInit::kZeros));
  std::vector<float> weight;
  for (int head = 0; head < heads * keys; ++head) {
    for (int i = 0; i < dim; ++i) {
      weight.push_back(1.0f + gamma[static_cast<size_t>(head / keys * dim + i)]);
    }
  }
  MNEME_ASSIGN_OR_RETURN(TensorView norm, builder.weights().Constant(weight));
  norm.shape = {heads * keys, dim};
  return norm;
}

// A row for each tensor of each head, in the order of the network.
absl::StatusOr<Projection> TakeTensorRates(const LayerBuilder& builder,
                                           const TrainedMemoryConfig& config) {
  const int tensors = config.network.tensors(), total = config.heads * tensors;
  std::vector<int> rows;
  for (int head = 0; head < config.heads; ++head) {
    for (int t = 0; t < tensors; ++t) {
      rows.push_back(head * tensors + StoredIndex(config.network, t));
    }
  }
  const std::string name = builder.Weight("4.to_layer_modulation.0");
  MNEME_ASSIGN_OR_RETURN(const PackedMatrix matrix,
                         builder.weights().MatrixOfRows(absl::StrCat(name, ".weight"), total,
                                                        builder.model_dim, rows));
  MNEME_ASSIGN_OR_RETURN(
      const std::vector<float> stored,
      builder.weights().Values(absl::StrCat(name, ".bias"), {total}, WeightInit::kZeros));
  std::vector<float> bias;
  for (const int row : rows) bias.push_back(stored[static_cast<size_t>(row)]);
  Projection rates{.weights = {matrix}};
  MNEME_ASSIGN_OR_RETURN(rates.bias, builder.weights().Constant(bias));
  rates.bias.shape = {1, total};
  return rates;
}

}  // namespace

absl::StatusOr<TitansPytorchMemory> TitansPytorchMemory::Make(
    const LayerBuilder& builder, const TitansPytorchMemoryConfig& config) {
  Weights& weights = builder.weights();
  TrainedMemoryConfig trained = config.memory;
  const int heads = trained.heads, dim = trained.dim, keys = trained.keys;
  const int model_dim = builder.model_dim;
  TitansPytorchMemory memory;
  memory.config_ = config;
  memory.norm_eps_ = builder.norm_eps;
  if (config.input_norms) {
    for (const auto& [norm, name] : {std::pair(&memory.retrieve_norm_, "4.retrieve_norm.weight"),
                                     std::pair(&memory.store_norm_, "4.store_norm.weight")}) {
      MNEME_ASSIGN_OR_RETURN(
          *norm, TakeNorm(weights, builder.prefix, {name}, model_dim, builder.norm_eps));
    }
  }
  const char* const stream_end = config.silu ? ".0" : "";
  for (const auto& [projection, name, rows] :
       {std::tuple(&memory.q_, "4.to_queries", heads * dim),
        std::tuple(&memory.k_, "4.to_keys", heads * keys * dim),
        std::tuple(&memory.v_, "4.to_values", heads * keys * dim)}) {
    MNEME_ASSIGN_OR_RETURN(
        *projection, TakeProjection(builder, absl::StrCat(name, stream_end), rows, model_dim));
  }
  if (config.qk_norm) {
    MNEME_ASSIGN_OR_RETURN(memory.q_norm_, TakeHeadNorm(builder, "4.q_norm.gamma", heads, dim, 1));
    MNEME_ASSIGN_OR_RETURN(memory.k_norm_,
                           TakeHeadNorm(builder, "4.k_norm.gamma", heads, dim, keys));
  }
  if (config.output_norm) {
    MNEME_ASSIGN_OR_RETURN(memory.output_norm_,
                           TakeHeadNorm(builder, "4.multihead_rmsnorm.gamma", heads, dim, 1));
  }
  const auto take_gate = [&](Projection& gate, const char* name, int rows) -> absl::Status {
    MNEME_ASSIGN_OR_RETURN(gate, TakeProjection(builder, name, rows, model_dim, Bias::kAdded));
    return absl::OkStatus();
  };
  if (config.pooling == Pooling::kAttention) {
    MNEME_RETURN_IF_ERROR(
        take_gate(memory.pool_logits_, "4.reduce_to_chunk_rep.to_attn_logits", model_dim));
  }
  MNEME_RETURN_IF_ERROR(take_gate(memory.rate_, "4.to_adaptive_step.0", heads * keys));
  MNEME_RETURN_IF_ERROR(take_gate(memory.keep_, "4.to_decay_factor.0", heads));
  if (trained.orders > 0) {
    MNEME_RETURN_IF_ERROR(take_gate(memory.momentum_, "4.to_momentum.0", heads * trained.orders));
  }
  if (config.mixes_momenta) {
    const int mixed = trained.orders + (config.mixes_surprise ? 1 : 0);
    MNEME_RETURN_IF_ERROR(
        take_gate(memory.momentum_mix_, "4.to_learned_momentum_combine.0", heads * mixed));
  }
  if (config.tensor_rate_max > 0) {
    MNEME_ASSIGN_OR_RETURN(memory.tensor_rates_, TakeTensorRates(builder, trained));
  }
  if (config.has_residual) {
    MNEME_RETURN_IF_ERROR(
        take_gate(memory.residual_mix_, "4.to_learned_weight_residual_mix.0", heads));
  }
  if (config.gated_transition) {
    MNEME_ASSIGN_OR_RETURN(trained.transition, weights.Floats(builder.Weight("4.transition_gate"),
                                                              {}, WeightInit::kZeros));
    trained.transition.shape = {1};
  }
  if (trained.step > 1) {
    const MemoryFields fields(builder, /*routing=*/{});
    const int sums = config.pooling == Pooling::kAttention ? 3 : 1;
    memory.pool_sums_ = fields.AddExactVector("pool_sums", sums * model_dim);
  }
  IgnoreTemplate(builder, trained.network);
  MNEME_ASSIGN_OR_RETURN(memory.memory_,
                         TrainedMemory::Take(builder, trained, TensorNames(config)));
  if (heads > 1) {
    MNEME_ASSIGN_OR_RETURN(memory.head_gate_,
                           TakeProjection(builder, "4.retrieve_gate.0", heads, model_dim));
    MNEME_ASSIGN_OR_RETURN(memory.out_,
                           TakeProjection(builder, "4.combine_heads", model_dim, heads * dim));
  }
  return memory;
}

TensorView TitansPytorchMemory::Pool(ForwardContext& ctx, const TensorView& x) const {
  const int step = config_.memory.step;
  if (step == 1) return x;
  const TensorView pooled = ctx.Temp(x.shape);
  if (config_.pooling == Pooling::kMean) {
    ctx.kernels().ChunkMean({.x = x,
                             .chunk = step,
                             .positions = ctx.row_index.token_positions,
                             .segments = ctx.row_index.segments,
                             .sums = ctx.State(pool_sums_),
                             .y = pooled});
    return pooled;
  }
  const TensorView logits = ctx.Temp(x.shape);
  Project(ctx.kernels(), {{.projection = pool_logits_, .x = x, .y = logits}});
  ctx.kernels().ChunkPool({.x = x,
                           .logits = logits,
                           .chunk = step,
                           .positions = ctx.row_index.token_positions,
                           .segments = ctx.row_index.segments,
                           .sums = ctx.State(pool_sums_),
                           .y = pooled});
  return pooled;
}

void TitansPytorchMemory::AddGates(ForwardContext& ctx, const TensorView& x,
                                   NeuralMemoryArgs& args) const {
  Kernels& kernels = ctx.kernels();
  const TensorView pooled = Pool(ctx, x);
  std::vector<ProjectionArgs> products;
  std::vector<ActivateArgs> activations;
  const auto add = [&](const Projection& projection, const TensorView& from, TensorView& gate,
                       double scale) {
    if (!projection.exists()) return;
    gate = ctx.Temp({x.shape[0], projection.out()});
    products.push_back({.projection = projection, .x = from, .y = gate});
    if (scale == 0) return;
    activations.push_back({.x = gate,
                           .activation = Activation::kSigmoid,
                           .scale = static_cast<float>(scale),
                           .y = gate});
  };
  add(rate_, x, args.rate, 1);
  add(keep_, pooled, args.keep, 0);
  add(momentum_, pooled, args.momentum, 1);
  add(momentum_mix_, pooled, args.momentum_mix, 0);
  add(tensor_rates_, pooled, args.tensor_rates, config_.tensor_rate_max);
  add(residual_mix_, pooled, args.residual_mix, 1);
  Project(kernels, products);
  kernels.Activate(activations);
  kernels.KeepGate({.x = args.keep, .y = args.keep});
  if (momentum_.exists()) memory_.Tell(ctx, "eta", args.momentum);
  memory_.Tell(ctx, "alpha", args.keep, /*scale=*/-1, /*offset=*/1);
}

void TitansPytorchMemory::NormHeads(ForwardContext& ctx, const TensorView& x,
                                    const TensorView& weight) const {
  ctx.kernels().GatedRmsNorm({.x = x, .weight = weight, .eps = norm_eps_, .y = x});
}

void TitansPytorchMemory::Feed(ForwardContext& ctx, const MemoryViews& views,
                               const MemoryCopy& residual, const TensorView& y) const {
  const Workspace::Scope scope(ctx.workspace);
  Kernels& kernels = ctx.kernels();
  const TrainedMemoryConfig& trained = config_.memory;
  const int64_t tokens = y.shape[0];
  const auto normed = [&](const Norm& norm, const TensorView& view) {
    if (!config_.input_norms) return view;
    const TensorView x = ctx.Temp(view.shape);
    ApplyNorm(kernels, norm, view, x);
    return x;
  };
  const TensorView query_input = normed(retrieve_norm_, views.q);
  const TensorView key_input = normed(store_norm_, views.k);
  const TensorView value_input =
      views.v.data == views.k.data ? key_input : normed(store_norm_, views.v);

  const TensorView q = ctx.Temp({tokens, q_.out()});
  const TensorView k = ctx.Temp({tokens, k_.out()}), v = ctx.Temp({tokens, v_.out()});
  Project(kernels, {{.projection = q_, .x = query_input, .y = q},
                    {.projection = k_, .x = key_input, .y = k},
                    {.projection = v_, .x = value_input, .y = v}});
  if (config_.silu) {
    const ActivateArgs silu[] = {{.x = q, .activation = Activation::kSilu, .y = q},
                                 {.x = k, .activation = Activation::kSilu, .y = k},
                                 {.x = v, .activation = Activation::kSilu, .y = v}};
    kernels.Activate(silu);
  }
  NeuralMemoryArgs args = memory_.Args(ctx, ctx.row_index);
  args.q = ByHead(q, trained.heads);
  args.k = ByHead(k, trained.heads * trained.keys);
  args.v = ByHead(v, trained.heads * trained.keys);
  if (config_.qk_norm) {
    NormHeads(ctx, args.q, q_norm_);
    NormHeads(ctx, args.k, k_norm_);
  }
  AddGates(ctx, key_input, args);
  args.residual = residual;
  const bool one_head = trained.heads == 1;
  args.out = one_head ? ByHead(y, 1) : ctx.Temp(args.q.shape);
  memory_.Train(ctx, args);
  if (config_.output_norm) NormHeads(ctx, args.out, output_norm_);
  if (one_head) return memory_.Tell(ctx, "read", y);
  const TensorView gate = ctx.Temp({tokens, trained.heads}), read = Flat(args.out);
  Project(kernels, {{.projection = head_gate_, .x = query_input, .y = gate}});
  const ActivateArgs sigmoid[] = {{.x = gate, .activation = Activation::kSigmoid, .y = gate}};
  kernels.Activate(sigmoid);
  kernels.Multiply({.a = read, .b = gate, .y = read});
  Project(kernels, {{.projection = out_, .x = read, .y = y}});
  memory_.Tell(ctx, "read", y);
}

}  // namespace mneme
