#include "models/mixers/trained_memory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

// The divisor is this much more than the share that a step keeps: an error below that of an f32.
constexpr float kLeastKeep = 1e-12f;

// [heads, ...] of one tensor.
Shape OfAllHeads(const TrainedMemoryConfig& config, int tensor) {
  const Shape one = config.network.shape(tensor, config.dim);
  return one.rank == 2 ? Shape{config.heads, one[0], one[1]} : Shape{config.heads, one[0]};
}

// [1, ...]: of a field with one memory.
Shape OfOneMemory(const Shape& shape) {
  Shape all{1};
  for (int i = 0; i < shape.rank; ++i) all.dims[all.rank++] = shape[i];
  return all;
}

Shape WithoutFirst(const Shape& shape) {
  Shape rest;
  for (int i = 1; i < shape.rank; ++i) rest.dims[rest.rank++] = shape[i];
  return rest;
}

// Takes the tensor of all heads, whether they are stored or one for all of them.
absl::StatusOr<TensorView> TakeInitial(const LayerBuilder& builder,
                                       const TrainedMemoryConfig& config,
                                       const MemoryTensorName& tensor, int t) {
  if (tensor.weight.empty()) {
    const auto elements = static_cast<size_t>(OfAllHeads(config, t).elements());
    return builder.weights().Constant(std::vector<float>(elements));
  }
  const std::string name = builder.Weight(tensor.weight);
  if (tensor.stored.elements() == OfAllHeads(config, t).elements()) {
    return builder.weights().Floats(name, tensor.stored, WeightInit::kNormal);
  }
  MNEME_ASSIGN_OR_RETURN(const std::vector<float> one,
                         builder.weights().Values(name, tensor.stored, WeightInit::kNormal));
  std::vector<float> all;
  for (int head = 0; head < config.heads; ++head) all.insert(all.end(), one.begin(), one.end());
  return builder.weights().Constant(all);
}

}  // namespace

absl::StatusOr<TrainedMemory> TrainedMemory::Take(const LayerBuilder& builder,
                                                  const TrainedMemoryConfig& config,
                                                  std::span<const MemoryTensorName> tensors) {
  CHECK_EQ(static_cast<int>(tensors.size()), config.network.tensors());
  TrainedMemory memory;
  memory.config_ = config;
  memory.layer_ = builder.layer;
  if (std::vector<TrainedLayer>* const trained = builder.network.trained; trained != nullptr) {
    memory.place_ = static_cast<int>(trained->size());
    trained->push_back({.layer = builder.layer,
                        .heads = config.heads,
                        .step = config.step,
                        .anchor_period = config.anchor_period,
                        .loss_scale = config.loss_scale,
                        .prefix = config.prefix});
  }
  for (int t = 0; t < config.network.tensors(); ++t) {
    const MemoryTensorName& tensor = tensors[static_cast<size_t>(t)];
    MNEME_ASSIGN_OR_RETURN(TensorView values, TakeInitial(builder, config, tensor, t));
    values.shape = OfAllHeads(config, t);
    memory.learned_.at[t] = values;
  }
  if (config.decays_first) {
    CHECK(config.network.tensors() == 1 && config.keys == 1 && config.step == 1 &&
          config.anchor_period == 1 && !config.may_hold_back);
    const std::vector<float> least(static_cast<size_t>(config.heads), kLeastKeep);
    MNEME_ASSIGN_OR_RETURN(memory.least_keep_, builder.weights().Constant(least));
  }
  const bool f64 = builder.network.state_format.memory_dtype == DType::kF64;
  enum class Begins : uint8_t { kAsWeights, kAtZero, kAnyhow };
  const auto add_field = [&](absl::string_view name, const Shape& shape, Begins begins) {
    const bool shared =
        begins == Begins::kAsWeights || (begins == Begins::kAtZero && config.prefix > 0);
    return builder.AddState(
        {.name = std::string(name),
         .dtype = f64 ? DType::kF64 : DType::kF32,
         .shape = OfOneMemory(shape),
         .initial = shared ? StateInitial::kShared : StateInitial::kZero,
         .guard = StateGuard::kFed,
         .role = begins == Begins::kAnyhow ? StateRole::kDerived : StateRole::kRewritten});
  };
  const auto add = [&](const char* name, Begins begins, int copies = 1) {
    Copy copy;
    for (int t = 0; t < config.network.tensors(); ++t) {
      Shape shape = OfAllHeads(config, t);
      shape.dims[0] *= copies;
      copy.push_back(
          add_field(absl::StrCat(name, ".", tensors[static_cast<size_t>(t)].field), shape, begins));
    }
    return copy;
  };
  memory.weights_ = add("memory", Begins::kAsWeights);
  if (config.orders > 0) memory.momenta_ = add("momentum", Begins::kAtZero, config.orders);
  const NeuralMemoryArgs kept = memory.Rule();
  if (kept.stores_anchor()) memory.anchors_ = add("anchor", Begins::kAsWeights);
  if (config.frozen_period != 0) memory.frozen_ = add("frozen", Begins::kAsWeights);
  if (config.read == NeuralMemoryArgs::Read::kAhead) {
    memory.gradients_ = add("gradient", Begins::kAtZero);
  }
  if (config.keeps_before) memory.before_ = add("before", Begins::kAnyhow);
  if (kept.stores_pairs()) {
    const int64_t pairs = int64_t{config.step - 1} * config.keys;
    const Shape vectors{config.heads, pairs, config.dim};
    memory.pending_keys_ = add_field("pending.keys", vectors, Begins::kAtZero);
    memory.pending_values_ = add_field("pending.values", vectors, Begins::kAtZero);
    memory.pending_rates_ = add_field("pending.rates", {config.heads, pairs}, Begins::kAtZero);
  }
  const int most =
      HeldCapacity(kept, config.orders, config.dim, builder.network.state_format.pending_writes);
  if (most > 0 && config.may_hold_back) {
    const auto add_held = [&](const char* name, const Shape& shape) {
      return builder.AddState({.name = name,
                               .dtype = DType::kF32,
                               .shape = shape,
                               .guard = StateGuard::kFed,
                               .role = StateRole::kHeldBack,
                               .writes = most});
    };
    memory.held_steps_ = most;
    memory.held_numbers_ = add_held("held.numbers", {1, config.heads, HeldNumbers(most)});
    memory.held_vectors_ = add_held(
        "held.vectors", {1, config.heads, most, HeldVectors(config.dim, config.network.hidden)});
  }
  return memory;
}

HeldSteps TrainedMemory::Held(const ForwardContext& ctx) const {
  if (held_steps_ == 0) return {};
  return {.capacity = held_steps_,
          .numbers = ctx.State(*held_numbers_),
          .vectors = ctx.State(*held_vectors_)};
}

void TrainedMemory::Settle(ForwardContext& ctx, const TensorView& slots) const {
  HeldMemorySteps* const steps = HeldMemoryStepsOf(ctx.kernels());
  if (held_steps_ == 0 || steps == nullptr) return;
  SettleNetworkArgs args = {.slots = slots,
                            .heads = config_.heads,
                            .dim = config_.dim,
                            .hidden = config_.network.hidden,
                            .held = Held(ctx)};
  const auto set = [&](const Copy& fields, MemoryCopy& copy) {
    for (size_t t = 0; t < fields.size(); ++t) copy.at[t] = ctx.State(fields[t]);
  };
  if (gradients_.empty()) {
    set(weights_, args.weights);
    set(momenta_, args.momenta);
  } else {
    set(gradients_, args.gradients);
  }
  steps->SettleNetwork(args);
}

NeuralMemoryArgs TrainedMemory::Rule() const {
  return {.network = config_.network,
          .keys = config_.keys,
          .transition = config_.transition,
          .rate_scale = config_.rate_scale,
          .max_grad_norm = config_.max_grad_norm,
          .spectral_norm = config_.spectral_norm,
          .step = config_.step,
          .anchor_period = config_.anchor_period,
          .frozen_period = config_.frozen_period,
          .read = config_.read};
}

NeuralMemoryArgs TrainedMemory::Args(const ForwardContext& ctx, const RowIndex& rows) const {
  NeuralMemoryArgs args = Rule();
  args.positions = rows.token_positions;
  args.first_position = ctx.prepares ? 0 : ctx.prefix;
  args.segments = rows.segments;
  const auto set = [&](const Copy& fields, MemoryCopy& copy, MemoryInitial& initial) {
    for (size_t t = 0; t < fields.size(); ++t) {
      copy.at[t] = ctx.State(fields[t]);
      initial.at[t] = ctx.Initial(fields[t]);
      initial.at[t].shape = WithoutFirst(fields[t].shape);
    }
  };
  set(weights_, args.weights, args.initial_weights);
  set(momenta_, args.momenta, args.initial_momenta);
  set(anchors_, args.anchors, args.initial_anchors);
  set(frozen_, args.frozen, args.initial_frozen);
  set(gradients_, args.gradients, args.initial_gradients);
  args.before = Before(ctx);
  const auto set_pairs = [&](const std::optional<StateField>& field, StateView& view,
                             TensorView& initial) {
    if (!field) return;
    view = ctx.State(*field);
    initial = ctx.Initial(*field);
    initial.shape = WithoutFirst(field->shape);
  };
  set_pairs(pending_keys_, args.pending.k, args.initial_pending.k);
  set_pairs(pending_values_, args.pending.v, args.initial_pending.v);
  set_pairs(pending_rates_, args.pending.rate, args.initial_pending.rate);
  if (ctx.initial == nullptr) args.initial_weights = learned_;
  if (config_.anchor_period == 0) args.initial_anchor = learned_;
  return args;
}

MemoryCopy TrainedMemory::Before(const ForwardContext& ctx) const {
  MemoryCopy before;
  for (size_t t = 0; t < before_.size(); ++t) before.at[t] = ctx.State(before_[t]);
  return before;
}

void TrainedMemory::AddLoss(ForwardContext& ctx, NeuralMemoryArgs& args) const {
  const bool surprises = !ctx.surprise.values.empty();
  if (!surprises && ctx.observer == nullptr) return;
  const Shape pairs{args.k.shape[0], args.k.shape[1]};
  args.loss = surprises ? ctx.Temp(pairs) : ctx.observer->Scratch(ctx.backend, pairs);
}

SurpriseArgs TrainedMemory::SurpriseOf(const ForwardContext& ctx,
                                       const NeuralMemoryArgs& args) const {
  if (ctx.surprise.values.empty()) return {};
  return {.loss = args.loss,
          .read = args.out,
          .places = ctx.surprise.places,
          .outer = ctx.surprise.outer,
          .surprise = ctx.surprise.Of(place_)};
}

SurpriseArgs TrainedMemory::Run(ForwardContext& ctx, const MemoryStreams& streams,
                                NeuralMemoryArgs args) const {
  NeuralMemoryOutputArgs output;
  CHECK(!Run(ctx, streams, args, output, /*product=*/nullptr));
  return output.surprise;
}

bool TrainedMemory::Run(ForwardContext& ctx, const MemoryStreams& streams, NeuralMemoryArgs args,
                        NeuralMemoryOutputArgs& output, const LinearArgs* product) const {
  AddLoss(ctx, args);
  output.surprise = SurpriseOf(ctx, args);
  bool done = false;
  if (config_.decays_first && !args.keep.empty()) {
    MemoryStreams before = streams;
    before.Finish(ctx);
    ctx.kernels().NeuralMemory(DecayFirst(ctx, args));
    UndoDecay(ctx, args);
  } else {
    // A prefix leaves the state that sessions begin with: nothing is held back of it.
    MemoryAnswer answer;
    if (product != nullptr && ctx.observer == nullptr) {
      answer = {.output = &output, .product = *product, .done = &done};
    }
    streams.Run(ctx, args, ctx.prepares ? HeldSteps{} : Held(ctx), answer);
  }
  Tell(ctx, "loss", args.loss, config_.loss_scale);
  Tell(ctx, "theta", args.rate, config_.rate_scale / (2 * config_.loss_scale));
  return done;
}

// The gradient at keep W, rate k^T (k keep W - v), is rate keep k^T (k W - v / keep): that at W of
// another value, at another rate.
NeuralMemoryArgs TrainedMemory::DecayFirst(ForwardContext& ctx,
                                           const NeuralMemoryArgs& args) const {
  Kernels& kernels = ctx.kernels();
  NeuralMemoryArgs at_weights = args;
  at_weights.v = ctx.Temp(args.v.shape);
  at_weights.rate = ctx.Temp(args.rate.shape);
  kernels.Divide({.x = args.v, .z = args.keep, .eps = kLeastKeep, .y = at_weights.v});
  kernels.Multiply({.a = args.rate, .b = args.keep, .y = at_weights.rate});
  kernels.AddScaled({.x = args.rate, .scale = least_keep_, .y = at_weights.rate});
  return at_weights;
}

// The loss |k keep W - v|^2 is keep^2 |k W - v / keep|^2.
void TrainedMemory::UndoDecay(ForwardContext& ctx, const NeuralMemoryArgs& args) const {
  if (args.loss.empty()) return;
  for (int i = 0; i < 2; ++i) {
    ctx.kernels().Multiply({.a = args.loss, .b = args.keep, .y = args.loss});
  }
}

void TrainedMemory::Train(ForwardContext& ctx, const NeuralMemoryArgs& args) const {
  const SurpriseArgs surprise = Run(ctx, MemoryStreams(), args);
  if (!surprise.surprise.empty()) ctx.kernels().Surprise(surprise);
}

bool TrainedMemory::TrainGated(ForwardContext& ctx, GatedMemoryArgs args) const {
  StreamSteps* const steps = StreamStepsOf(ctx.kernels());
  if (steps == nullptr || ctx.observer != nullptr) return false;
  const Workspace::Scope scope(ctx.workspace);
  NeuralMemoryArgs& memory = args.memory;
  const bool surprises = !ctx.surprise.values.empty();
  if (surprises) memory.loss = ctx.Temp({memory.k.shape[0], memory.k.shape[1]});
  if (!steps->GatedMemory(args)) return false;
  if (surprises) {
    ctx.kernels().Surprise({.loss = memory.loss,
                            .read = memory.out,
                            .places = ctx.surprise.places,
                            .outer = ctx.surprise.outer,
                            .surprise = ctx.surprise.Of(place_)});
  }
  return true;
}

void TrainedMemory::TellProduct(ForwardContext& ctx, absl::string_view name, const TensorView& x,
                                std::span<const PackedMatrix> weights) const {
  if (ctx.observer == nullptr) return;
  const TensorView y =
      ctx.observer->Scratch(ctx.backend, {x.shape[0], weights.front().out_features});
  const LinearArgs product[] = {{.x = x, .weights = weights, .y = y}};
  ctx.kernels().Linear(product);
  Tell(ctx, name, y);
}

}  // namespace mneme
