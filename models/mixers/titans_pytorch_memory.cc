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

// Offsets from 1, stored [heads, 1, dim], each for `keys` heads of what is normed. The sum is as
// exact as the backend's numbers are.
absl::StatusOr<TensorView> TakeHeadNorm(const LayerBuilder& builder, const char* name, int heads,
                                        int dim, int keys) {
  MNEME_ASSIGN_OR_RETURN(
      const std::vector<float> gamma,
      builder.weights().Values(builder.Weight(name), {heads, 1, dim}, WeightInit::kZeros));
  std::vector<double> weight;
  for (int head = 0; head < heads * keys; ++head) {
    for (int i = 0; i < dim; ++i) {
      weight.push_back(1.0 + gamma[static_cast<size_t>(head / keys * dim + i)]);
    }
  }
  const bool f64 = builder.network.state_format.memory_dtype == DType::kF64;
  MNEME_ASSIGN_OR_RETURN(TensorView norm,
                         builder.weights().ConstantOf(f64 ? DType::kF64 : DType::kF32, weight));
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

ChunkMeanArgs TitansPytorchMemory::Mean(const ForwardContext& ctx) const {
  return {.chunk = config_.memory.step,
          .positions = ctx.row_index.token_positions,
          .segments = ctx.row_index.segments,
          .sums = ctx.State(pool_sums_)};
}

TensorView TitansPytorchMemory::Pool(ForwardContext& ctx, const TensorView& x) const {
  const int step = config_.memory.step;
  if (step == 1) return x;
  const TensorView pooled = ctx.Temp(x.shape);
  if (config_.pooling == Pooling::kMean) {
    ChunkMeanArgs mean = Mean(ctx);
    mean.x = x;
    mean.y = pooled;
    ctx.kernels().ChunkMean(mean);
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

void TitansPytorchMemory::NormHeads(ForwardContext& ctx, const TensorView& x,
                                    const TensorView& weight) const {
  ctx.kernels().GatedRmsNorm({.x = x, .weight = weight, .eps = norm_eps_, .y = x});
}

void TitansPytorchMemory::Want(ForwardContext& ctx, BranchWants& wants) const {
  const auto add = [](BranchWants::Products& products,
                      std::initializer_list<const Projection*> projections) {
    for (const Projection* projection : projections) {
      if (projection->exists()) products.push_back(projection->weights);
    }
  };
  wants.normed[0].norm = &retrieve_norm_;
  add(wants.normed[0].products, {&q_, &head_gate_});
  wants.normed[1].norm = &store_norm_;
  if (config_.memory.step > 1 && config_.pooling == Pooling::kMean) {
    add(wants.normed[1].products, {&k_, &v_, &rate_});
    wants.mean = Mean(ctx);
    add(wants.of_mean, {&keep_, &momentum_, &momentum_mix_, &tensor_rates_, &residual_mix_});
  }
}

void TitansPytorchMemory::Feed(ForwardContext& ctx, const BranchInput& input,
                               const MemoryCopy& residual, const TensorView& y) const {
  FeedNormed(
      ctx, {.q = input.normed[0], .k = input.normed[1], .v = input.normed[1], .pooled = input.mean},
      residual, y);
}

void TitansPytorchMemory::Feed(ForwardContext& ctx, const MemoryViews& views,
                               const MemoryCopy& residual, const TensorView& y) const {
  const Workspace::Scope scope(ctx.workspace);
  const auto normed = [&](const Norm& norm, const TensorView& view) {
    if (!config_.input_norms) return view;
    const TensorView x = ctx.Temp(view.shape);
    ApplyNorm(ctx.kernels(), norm, view, x);
    return x;
  };
  Inputs inputs = {.q = normed(retrieve_norm_, views.q), .k = normed(store_norm_, views.k)};
  inputs.v = views.v.data == views.k.data ? inputs.k : normed(store_norm_, views.v);
  FeedNormed(ctx, inputs, residual, y);
}

void TitansPytorchMemory::FeedNormed(ForwardContext& ctx, const Inputs& inputs,
                                     const MemoryCopy& residual, const TensorView& y) const {
  const Workspace::Scope scope(ctx.workspace);
  Kernels& kernels = ctx.kernels();
  const TrainedMemoryConfig& trained = config_.memory;
  const int64_t tokens = y.shape[0];
  const TensorView pooled = inputs.pooled.empty() ? Pool(ctx, inputs.k) : inputs.pooled;

  NeuralMemoryArgs args = memory_.Args(ctx, ctx.row_index);
  args.residual = residual;
  std::vector<ProjectionArgs> products;
  const auto add = [&](const Projection& projection, const TensorView& x) {
    if (!projection.exists()) return TensorView{};
    const TensorView to = ctx.Temp({tokens, projection.out()});
    products.push_back({.projection = projection, .x = x, .y = to});
    return to;
  };
  const TensorView q = add(q_, inputs.q), k = add(k_, inputs.k), v = add(v_, inputs.v);
  args.rate = add(rate_, inputs.k);
  args.keep = add(keep_, pooled);
  args.momentum = add(momentum_, pooled);
  args.momentum_mix = add(momentum_mix_, pooled);
  args.tensor_rates = add(tensor_rates_, pooled);
  args.residual_mix = add(residual_mix_, pooled);
  const TensorView gate = add(head_gate_, inputs.q);
  Project(kernels, products);

  args.q = ByHead(q, trained.heads);
  args.k = ByHead(k, trained.heads * trained.keys);
  args.v = ByHead(v, trained.heads * trained.keys);
  if (config_.silu) {
    const ActivateArgs silu[] = {{.x = q, .activation = Activation::kSilu, .y = q},
                                 {.x = k, .activation = Activation::kSilu, .y = k},
                                 {.x = v, .activation = Activation::kSilu, .y = v}};
    kernels.Activate(silu);
  }
  if (config_.qk_norm) {
    NormHeads(ctx, args.q, q_norm_);
    NormHeads(ctx, args.k, k_norm_);
  }
  const bool one_head = trained.heads == 1;
  args.out = one_head ? ByHead(y, 1) : ctx.Temp(args.q.shape);
  if (!one_head && !config_.output_norm) {
    const TensorView gated =
        ctx.TempForProducts({tokens, out_.weights.front().in_features}, {out_.weights});
    // Positions and segments come before the positions' own network, which nothing overlaps.
    if (memory_.TrainGated(ctx, {.memory = args, .gate = gate, .y = gated, .settled = true})) {
      Project(kernels, {{.projection = out_, .x = gated, .y = y}});
      return;
    }
  }
  FinishGates(ctx, args);
  memory_.Train(ctx, args);
  if (config_.output_norm) NormHeads(ctx, args.out, output_norm_);
  if (one_head) return memory_.Tell(ctx, "read", y);
  const TensorView read = Flat(args.out);
  const ActivateArgs sigmoid[] = {{.x = gate, .activation = Activation::kSigmoid, .y = gate}};
  kernels.Activate(sigmoid);
  kernels.Multiply({.a = read, .b = gate, .y = read});
  Project(kernels, {{.projection = out_, .x = read, .y = y}});
  memory_.Tell(ctx, "read", y);
}

void TitansPytorchMemory::FinishGates(ForwardContext& ctx, const NeuralMemoryArgs& args) const {
  std::vector<ActivateArgs> activations;
  const auto add = [&](const TensorView& gate, double scale) {
    if (gate.empty()) return;
    activations.push_back({.x = gate,
                           .activation = Activation::kSigmoid,
                           .scale = static_cast<float>(scale),
                           .y = gate});
  };
  add(args.rate, 1);
  add(args.momentum, 1);
  add(args.tensor_rates, config_.tensor_rate_max);
  add(args.residual_mix, 1);
  ctx.kernels().Activate(activations);
  ctx.kernels().KeepGate({.x = args.keep, .y = args.keep});
  if (!args.momentum.empty()) memory_.Tell(ctx, "eta", args.momentum);
  memory_.Tell(ctx, "alpha", args.keep, /*scale=*/-1, /*offset=*/1);
}

}  // namespace mneme
