#include "models/mixers/neural_memory.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/mixers/entry_streams.h"
#include "models/mixers/memory_fields.h"

namespace mneme {
namespace {

using Pooling = NeuralMemoryConfig::Pooling;

// |u| is not taken below 1e-12.
constexpr float kLeastSquaredNorm = 1e-24f;

// The tensors of the network, behind "memory.".
std::vector<MemoryTensorName> TensorNames(const TrainedMemoryConfig& config) {
  std::vector<MemoryTensorName> names;
  for (int t = 0; t < config.network.tensors(); ++t) {
    const std::string field =
        t == config.network.gain() ? "mem_norm_weight" : absl::StrCat("mem_weights.", t);
    const Shape one = config.network.shape(t, config.dim);
    names.push_back({.weight = absl::StrCat("memory.", field),
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
  } else {
    weights.Ignore(builder.Weight("memory.a_proj.weight"));  // Automodel's folders have it
  }
  MNEME_ASSIGN_OR_RETURN(memory.memory_,
                         TrainedMemory::Take(builder, trained, TensorNames(trained)));
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

std::vector<std::span<const PackedMatrix>> NeuralMemory::products() const {
  std::vector<std::span<const PackedMatrix>> products;
  for (const Stream& stream : streams_) products.push_back(stream.projection.weights);
  for (const Projection* gate : {&rate_, &momentum_.projection, &forget_.projection, &gate_}) {
    if (gate->exists()) products.push_back(gate->weights);
  }
  return products;
}

std::array<TensorView, 3> NeuralMemory::Streams(ForwardContext& ctx, const RowIndex& rows,
                                                const TensorView& x) const {
  Kernels& kernels = ctx.kernels();
  const int heads = config_.memory.heads;
  const Shape shape{x.shape[0], int64_t{heads} * config_.memory.dim};
  std::array<TensorView, 3> streams;
  std::vector<ProjectionArgs> products;
  std::vector<ShortConvArgs> convolutions;
  std::vector<ActivateArgs> activations;
  const bool convolved = config_.conv_width > 0;
  for (size_t i = 0; i < streams.size(); ++i) {
    const Stream& stream = streams_[i];
    const TensorView raw =
        convolved ? ctx.TempOfProducts(x, stream.projection.weights, shape) : ctx.Temp(shape);
    products.push_back({.projection = stream.projection, .x = x, .y = raw});
    streams[i] = raw;
    if (convolved) {
      streams[i] = ctx.Temp(shape);
      convolutions.push_back(
          {.x = raw,
           .weight = stream.conv,
           .bias = stream.conv_bias,
           .activation = config_.silu ? Activation::kSilu : Activation::kIdentity,
           .segments = rows.segments,
           .window = ctx.State(stream.window),
           .y = streams[i]});
    } else if (config_.silu) {
      activations.push_back({.x = raw, .activation = Activation::kSilu, .y = raw});
    }
    streams[i] = ByHead(streams[i], heads);
  }
  Project(kernels, products);
  if (!convolutions.empty()) kernels.ShortConv(convolutions);
  if (!activations.empty()) kernels.Activate(activations);
  if (config_.l2_norm) {
    for (const TensorView& normed : {streams[kQ], streams[kK]}) {
      kernels.L2Norm({.x = normed, .eps = kLeastSquaredNorm, .y = normed});
    }
  }
  return streams;
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
                        const TensorView& y, bool accumulate) const {
  const Workspace::Scope scope(ctx.workspace);
  Kernels& kernels = ctx.kernels();
  const auto [q, k, v] = Streams(ctx, rows, x);
  const Shape gates{x.shape[0], config_.memory.heads};
  NeuralMemoryArgs args = memory_.Args(ctx, rows);
  args.q = q;
  args.k = k;
  args.v = v;
  args.out = ctx.Temp(q.shape);
  std::vector<ProjectionArgs> products;
  const auto project = [&](const Projection& projection, TensorView& gate) {
    if (!projection.exists()) return;
    gate = ctx.Temp(gates);
    products.push_back({.projection = projection, .x = x, .y = gate});
  };
  project(rate_, args.rate);
  project(momentum_.projection, args.momentum);
  project(forget_.projection, args.keep);
  Project(kernels, products);
  std::vector<ActivateArgs> activations = {
      {.x = args.rate, .activation = Activation::kSigmoid, .y = args.rate}};
  if (momentum_.projection.exists()) {
    PoolAround(ctx, rows, momentum_, args.momentum, /*are_gates=*/false);
    activations.push_back(
        {.x = args.momentum, .activation = Activation::kSigmoid, .y = args.momentum});
  }
  kernels.Activate(activations);
  if (momentum_.projection.exists()) {
    memory_.Tell(ctx, "eta", args.momentum);
    PoolAround(ctx, rows, momentum_, args.momentum, /*are_gates=*/true);
  }
  if (forget_.projection.exists()) {
    PoolAround(ctx, rows, forget_, args.keep, /*are_gates=*/false);
    kernels.KeepGate({.x = args.keep, .a_log = a_log_, .dt_bias = dt_bias_, .y = args.keep});
    memory_.Tell(ctx, "alpha", args.keep, /*scale=*/-1, /*offset=*/1);
    PoolAround(ctx, rows, forget_, args.keep, /*are_gates=*/true);
  }
  memory_.Train(ctx, args);
  Emit(ctx, "read", x, args.out, y, accumulate);
}

void NeuralMemory::Recall(ForwardContext& ctx, const RowIndex& rows, const TensorView& x,
                          const TensorView& y) const {
  const Workspace::Scope scope(ctx.workspace);
  Kernels& kernels = ctx.kernels();
  const Stream& stream = streams_[kQ];
  const Shape shape{x.shape[0], stream.projection.out()};
  TensorView q = ctx.Temp(shape);
  if (config_.conv_width > 0) {
    const TensorView raw = ctx.TempOfProducts(x, stream.projection.weights, shape);
    Project(kernels, {{.projection = stream.projection, .x = x, .y = raw}});
    const ShortConvArgs convolution[] = {
        {.x = raw,
         .weight = stream.conv,
         .bias = stream.conv_bias,
         .activation = config_.silu ? Activation::kSilu : Activation::kIdentity,
         .segments = rows.segments,
         .window = ctx.State(recall_window_),
         .y = q}};
    kernels.ShortConv(convolution);
  } else {
    Project(kernels, {{.projection = stream.projection, .x = x, .y = q}});
    const ActivateArgs silu[] = {{.x = q, .activation = Activation::kSilu, .y = q}};
    if (config_.silu) kernels.Activate(silu);
  }
  q = ByHead(q, config_.memory.heads);
  if (config_.l2_norm) kernels.L2Norm({.x = q, .eps = kLeastSquaredNorm, .y = q});
  NeuralMemoryArgs args = memory_.Args(ctx, rows);
  args.read =
      args.frozen_period != 0 ? NeuralMemoryArgs::Read::kFrozen : NeuralMemoryArgs::Read::kAnchor;
  args.q = q;
  args.out = ctx.Temp(q.shape);
  kernels.NeuralMemory(args);
  Emit(ctx, "recall", x, args.out, y, /*accumulate=*/false);
}

void NeuralMemory::Emit(ForwardContext& ctx, absl::string_view name, const TensorView& x,
                        const TensorView& read, const TensorView& y, bool accumulate) const {
  Kernels& kernels = ctx.kernels();
  TensorView answer = Flat(read);
  if (gate_.exists()) {
    const TensorView raw = ctx.TempOfProducts(x, gate_.weights, answer.shape);
    const TensorView gate = ctx.Temp(answer.shape);
    Project(kernels, {{.projection = gate_, .x = x, .y = raw}});
    const ActivateArgs activation[] = {{.x = raw, .activation = Activation::kSilu, .y = gate}};
    kernels.Activate(activation);
    kernels.Multiply({.a = answer, .b = gate, .y = gate});
    const TensorView normed = ctx.TempForProducts(answer.shape, {out_.weights});
    TensorView from = gate, to = normed;
    from.shape = to.shape = {read.shape[0] * read.shape[1], read.shape[2]};
    kernels.RmsNorm({.x = from, .weight = norm_, .eps = config_.output_norm_eps, .y = to});
    answer = normed;
  }
  memory_.TellProduct(ctx, name, answer, out_.weights);
  const LinearArgs out[] = {
      {.x = answer, .weights = out_.weights, .y = y, .accumulate = accumulate}};
  kernels.Linear(out);
}

namespace {

class NeuralMemoryMixer final : public SequenceMixer {
 public:
  explicit NeuralMemoryMixer(NeuralMemory memory) : memory_(std::move(memory)) {}

  bool uses_row_index() const override { return true; }

  void Forward(ForwardContext& ctx, const Norm& norm, TensorView hidden) const override {
    const Workspace::Scope scope(ctx.workspace);
    const TensorView x = ctx.TempForProducts(hidden.shape, memory_.products());
    ApplyNorm(ctx.kernels(), norm, hidden, x);
    memory_.Feed(ctx, ctx.row_index, x, hidden, /*accumulate=*/true);
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
