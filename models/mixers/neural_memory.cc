#include "models/mixers/neural_memory.h"

#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/mixers/memory_fields.h"

namespace mneme {
namespace {

using Pooling = NeuralMemoryConfig::Pooling;

// |u| is not taken below 1e-12.
constexpr float kLeastSquaredNorm = 1e-24f;

// The tensors of the network, behind "memory.".
std::vector<MemoryTensorName> TensorNames(const TrainedMemoryConfig& config, bool stored) {
  std::vector<MemoryTensorName> names;
  for (int t = 0; t < config.network.tensors(); ++t) {
    const std::string field =
        t == config.network.gain() ? "mem_norm_weight" : absl::StrCat("mem_weights.", t);
    const Shape one = config.network.shape(t, config.dim);
    names.push_back({.weight = stored ? absl::StrCat("memory.", field) : "",
                     .stored = one.rank == 2 ? Shape{config.heads, one[0], one[1]}
                                             : Shape{config.heads, one[0]},
                     .field = field});
  }
  return names;
}

}  // namespace

absl::StatusOr<NeuralMemory> NeuralMemory::Make(const LayerBuilder& builder,
                                                const NeuralMemoryConfig& config) {
  Weights& weights = builder.weights();
  const TrainedMemoryConfig& trained = config.memory;
  const int channels = trained.heads * trained.dim, model_dim = builder.model_dim;
  NeuralMemory memory;
  memory.config_ = config;
  const MemoryFields fields(builder, /*routing=*/{}, trained.prefix > 0);
  const char* const names[] = {"q", "k", "v"};
  for (size_t i = 0; i < memory.streams_.size(); ++i) {
    Stream& stream = memory.streams_[i];
    MNEME_ASSIGN_OR_RETURN(
        stream.projection,
        TakeProjection(builder, absl::StrCat("memory.", names[i], "_proj"), channels, model_dim));
    const int width = config.conv_width;
    if (width == 0) continue;
    const std::string conv = builder.Weight(absl::StrCat("memory.", names[i], "_conv"));
    MNEME_ASSIGN_OR_RETURN(stream.conv,
                           weights.Floats(absl::StrCat(conv, ".weight"), {channels, 1, width},
                                          WeightInit::kConvolution));
    stream.conv.shape = {channels, width};
    if (config.conv_bias) {
      MNEME_ASSIGN_OR_RETURN(stream.conv_bias, weights.Floats(absl::StrCat(conv, ".bias"),
                                                              {channels}, WeightInit::kZeros));
    }
    stream.window =
        fields.AddWindow(absl::StrCat(names[i], "_window"), width - 1, stream.projection);
  }
  if (config.recalls && config.conv_width > 0) {
    memory.recall_window_ =
        fields.AddWindow("recall_window", config.conv_width - 1, memory.streams_[kQ].projection);
  }
  const auto take_gate = [&](const char* name) {
    const bool bias = weights.Has(builder.Weight(absl::StrCat(name, ".bias")));
    return TakeProjection(builder, name, trained.heads, model_dim,
                          bias ? Bias::kAdded : Bias::kNone);
  };
  const bool pools = config.pooling != Pooling::kToken;
  MNEME_ASSIGN_OR_RETURN(memory.rate_, take_gate("memory.b_proj"));
  if (trained.orders > 0) {
    MNEME_ASSIGN_OR_RETURN(memory.momentum_.projection, take_gate("memory.m_proj"));
    if (pools) memory.momentum_.sums = fields.AddExactVector("momentum_sums", trained.heads);
  }
  if (config.forgets) {
    MNEME_ASSIGN_OR_RETURN(memory.forget_.projection, take_gate("memory.a_proj"));
    if (pools) memory.forget_.sums = fields.AddExactVector("keep_sums", trained.heads);
    if (config.exponential_decay) {
      // Automodel keeps them in a module of their own.
      const auto take = [&](const char* name, WeightInit init) {
        const std::string own = builder.Weight(absl::StrCat("memory.", name));
        const std::string inner = builder.Weight(absl::StrCat("memory._fp32_params.", name));
        const bool is_inner = !weights.Has(own) && weights.Has(inner);
        return weights.Floats(is_inner ? inner : own, {trained.heads}, init);
      };
      MNEME_ASSIGN_OR_RETURN(memory.a_log_, take("A_log", WeightInit::kDecay));
      MNEME_ASSIGN_OR_RETURN(memory.dt_bias_, take("dt_bias", WeightInit::kTimeStep));
    }
  } else if (config.may_have_forget_gate) {
    weights.Ignore(builder.Weight("memory.a_proj.weight"));
  }
  TrainedMemoryConfig held_back = trained;
  held_back.may_hold_back = !config.recalls && !trained.decays_first;
  MNEME_ASSIGN_OR_RETURN(
      memory.memory_,
      TrainedMemory::Take(builder, held_back, TensorNames(trained, !config.starts_at_zero)));
  if (config.gated_output) {
    MNEME_ASSIGN_OR_RETURN(memory.gate_,
                           TakeProjection(builder, "memory.g_proj", channels, model_dim));
    MNEME_ASSIGN_OR_RETURN(memory.norm_, weights.Floats(builder.Weight("memory.norm.weight"),
                                                        {trained.dim}, WeightInit::kOnes));
  }
  MNEME_ASSIGN_OR_RETURN(memory.out_,
                         TakeProjection(builder, "memory.o_proj", model_dim, channels));
  return memory;
}

void NeuralMemory::Settle(ForwardContext& ctx, const TensorView& slots) const {
  memory_.Settle(ctx, slots);
}

std::vector<std::span<const PackedMatrix>> NeuralMemory::products() const {
  std::vector<std::span<const PackedMatrix>> products;
  for (const Stream& stream : streams_) products.push_back(stream.projection.weights);
  for (const Projection* gate : {&rate_, &momentum_.projection, &forget_.projection, &gate_}) {
    if (gate->exists()) products.push_back(gate->weights);
  }
  return products;
}

TensorView NeuralMemory::AddStream(ForwardContext& ctx, const RowIndex& rows, const TensorView& x,
                                   int which, const StateField& window,
                                   std::vector<ProjectionArgs>& products,
                                   MemoryStreams& streams) const {
  const Stream& stream = streams_[which];
  const Shape shape{x.shape[0], stream.projection.out()};
  const bool convolved = config_.conv_width > 0;
  const TensorView raw =
      convolved ? ctx.TempOfProducts(x, stream.projection.weights, shape) : ctx.Temp(shape);
  products.push_back({.projection = stream.projection, .x = x, .y = raw});
  const Activation activation = config_.silu ? Activation::kSilu : Activation::kIdentity;
  MemoryStream parts;
  TensorView y = raw;
  if (convolved) {
    y = ctx.Temp(shape);
    parts.convolution = ShortConvArgs{.x = raw,
                                      .weight = stream.conv,
                                      .bias = stream.conv_bias,
                                      .activation = activation,
                                      .segments = rows.segments,
                                      .window = ctx.State(window),
                                      .y = y};
  } else if (config_.silu) {
    parts.activation = ActivateArgs{.x = raw, .activation = activation, .y = raw};
  }
  const bool processed = convolved || config_.silu;
  const int added = processed ? streams.Add(y, parts) : streams.Add(y);
  const int heads = config_.memory.heads;
  if (which == kV || !config_.l2_norm) return ByHead(y, heads);
  const float scale = which == kQ ? config_.query_scale : 1.0f;
  return streams.L2Norm(added, heads, {.scale = scale, .eps = kLeastSquaredNorm});
}

TensorView NeuralMemory::AddOutputGate(ForwardContext& ctx, const TensorView& x,
                                       std::vector<ProjectionArgs>& products) const {
  if (!gate_.exists()) return {};
  const TensorView gate = ctx.TempOfProducts(x, gate_.weights, {x.shape[0], gate_.out()});
  products.push_back({.projection = gate_, .x = x, .y = gate});
  return gate;
}

void NeuralMemory::PoolAround(ForwardContext& ctx, const RowIndex& rows, const Gate& gate,
                              const TensorView& values, bool are_gates) const {
  if (config_.pooling != (are_gates ? Pooling::kGates : Pooling::kInputs)) return;
  ctx.kernels().ChunkMean({.x = values,
                           .chunk = config_.memory.step,
                           .positions = rows.token_positions,
                           .segments = rows.segments,
                           .sums = ctx.State(gate.sums),
                           .y = values});
}

void NeuralMemory::Feed(ForwardContext& ctx, const RowIndex& rows, const TensorView& x,
                        const TensorView& y, bool accumulate, const NormedInput& normed) const {
  const Workspace::Scope scope(ctx.workspace);
  std::vector<ProjectionArgs> products;
  MemoryStreams streams;
  NeuralMemoryArgs args = memory_.Args(ctx, rows);
  args.q = AddStream(ctx, rows, x, kQ, streams_[kQ].window, products, streams);
  args.k = AddStream(ctx, rows, x, kK, streams_[kK].window, products, streams);
  args.v = AddStream(ctx, rows, x, kV, streams_[kV].window, products, streams);
  args.out = ctx.Temp(args.q.shape);
  const auto project = [&](const Projection& projection) {
    const TensorView logits = ctx.Temp({x.shape[0], config_.memory.heads});
    products.push_back({.projection = projection, .x = x, .y = logits});
    return logits;
  };
  const auto add_sigmoid = [&](const TensorView& gate) {
    streams.Add(gate, {.activation =
                           ActivateArgs{.x = gate, .activation = Activation::kSigmoid, .y = gate}});
  };
  const bool has_momentum = momentum_.projection.exists(), forgets = forget_.projection.exists();
  args.rate = project(rate_);
  if (has_momentum) args.momentum = project(momentum_.projection);
  if (forgets) args.keep = project(forget_.projection);
  const TensorView output_gate = AddOutputGate(ctx, x, products);
  ProjectNormed(ctx, normed, x, products);

  add_sigmoid(args.rate);
  if (has_momentum) {
    PoolAround(ctx, rows, momentum_, args.momentum, /*are_gates=*/false);
    add_sigmoid(args.momentum);
  }
  if (forgets) {
    PoolAround(ctx, rows, forget_, args.keep, /*are_gates=*/false);
    streams.KeepGate(streams.Add(args.keep), {.a_log = a_log_, .dt_bias = dt_bias_});
  }
  // Gates that are looked at before the memory has them.
  if (config_.pooling == Pooling::kGates || ctx.observer != nullptr) streams.Finish(ctx);
  if (has_momentum) {
    memory_.Tell(ctx, "eta", args.momentum);
    PoolAround(ctx, rows, momentum_, args.momentum, /*are_gates=*/true);
  }
  if (forgets) {
    memory_.Tell(ctx, "alpha", args.keep, /*scale=*/-1, /*offset=*/1);
    PoolAround(ctx, rows, forget_, args.keep, /*are_gates=*/true);
  }
  NeuralMemoryOutputArgs output;
  const TensorView answer = Answer(ctx, output_gate, args.out, output);
  const LinearArgs product = {
      .x = answer, .weights = out_.weights, .y = y, .accumulate = accumulate};
  if (memory_.Run(ctx, streams, args, output, output_gate.empty() ? nullptr : &product)) return;
  if (output_gate.empty()) {
    TellSurprise(ctx, output.surprise);
  } else {
    GateAnswer(ctx, output);
  }
  Emit(ctx, "read", answer, y, accumulate);
}

void NeuralMemory::Recall(ForwardContext& ctx, const RowIndex& rows, const TensorView& x,
                          const TensorView& y) const {
  const Workspace::Scope scope(ctx.workspace);
  std::vector<ProjectionArgs> products;
  MemoryStreams streams;
  NeuralMemoryArgs args = memory_.Args(ctx, rows);
  args.read =
      args.frozen_period != 0 ? NeuralMemoryArgs::Read::kFrozen : NeuralMemoryArgs::Read::kAnchor;
  args.q = AddStream(ctx, rows, x, kQ, recall_window_, products, streams);
  args.out = ctx.Temp(args.q.shape);
  const TensorView output_gate = AddOutputGate(ctx, x, products);
  Project(ctx.kernels(), products);
  NeuralMemoryOutputArgs output;
  const TensorView answer = Answer(ctx, output_gate, args.out, output);
  streams.Run(ctx, args);
  if (!output_gate.empty()) GateAnswer(ctx, output);
  Emit(ctx, "recall", answer, y, /*accumulate=*/false);
}

TensorView NeuralMemory::Answer(ForwardContext& ctx, const TensorView& gate, const TensorView& read,
                                NeuralMemoryOutputArgs& output) const {
  const TensorView flat = Flat(read);
  if (gate.empty()) return flat;
  const TensorView gated = ctx.Temp(flat.shape);
  const TensorView normed = ctx.TempForProducts(flat.shape, {out_.weights});
  const auto by_head = [&](TensorView rows) {
    rows.shape = {read.shape[0] * read.shape[1], read.shape[2]};
    return rows;
  };
  output = {.surprise = {},
            .gate = {.x = gate, .activation = Activation::kSilu, .y = gated},
            .product = {.a = flat, .b = gated, .y = gated},
            .norm = RmsNormArgs{.x = by_head(gated),
                                .weight = norm_,
                                .eps = config_.output_norm_eps,
                                .y = by_head(normed)}};
  return normed;
}

void NeuralMemory::TellSurprise(ForwardContext& ctx, const SurpriseArgs& surprise) const {
  if (!surprise.surprise.empty()) ctx.kernels().Surprise(surprise);
}

void NeuralMemory::GateAnswer(ForwardContext& ctx, const NeuralMemoryOutputArgs& output) const {
  Kernels& kernels = ctx.kernels();
  if (kernels.NeuralMemoryOutput(output)) return;
  TellSurprise(ctx, output.surprise);
  const ActivateArgs silu[] = {output.gate};
  kernels.Activate(silu);
  kernels.Multiply(output.product);
  kernels.RmsNorm(std::get<RmsNormArgs>(output.norm));
}

void NeuralMemory::Emit(ForwardContext& ctx, absl::string_view name, const TensorView& answer,
                        const TensorView& y, bool accumulate) const {
  memory_.TellProduct(ctx, name, answer, out_.weights);
  const LinearArgs out[] = {
      {.x = answer, .weights = out_.weights, .y = y, .accumulate = accumulate}};
  ctx.kernels().Linear(out);
}

namespace {

class NeuralMemoryMixer final : public SequenceMixer {
 public:
  explicit NeuralMemoryMixer(NeuralMemory memory) : memory_(std::move(memory)) {}

  bool uses_row_index() const override { return true; }

  void Forward(ForwardContext& ctx, const Norm& norm, TensorView hidden) const override {
    const Workspace::Scope scope(ctx.workspace);
    const TensorView x = ctx.TempForProducts(hidden.shape, memory_.products());
    memory_.Feed(ctx, ctx.row_index, x, hidden, /*accumulate=*/true, {&norm, hidden});
  }

  void Settle(ForwardContext& ctx, const TensorView& slots) const override {
    memory_.Settle(ctx, slots);
  }

 private:
  NeuralMemory memory_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeNeuralMemory(const LayerBuilder& builder,
                                                                const NeuralMemoryConfig& config) {
  MNEME_ASSIGN_OR_RETURN(NeuralMemory memory, NeuralMemory::Make(builder, config));
  return std::make_unique<NeuralMemoryMixer>(std::move(memory));
}

}  // namespace mneme
