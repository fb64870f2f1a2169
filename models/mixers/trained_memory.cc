#include "models/mixers/trained_memory.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

// [heads, ...] of one tensor.
Shape OfAllHeads(const TrainedMemoryConfig& config, int tensor) {
  const Shape one = config.network.shape(tensor, config.dim);
  return one.rank == 2 ? Shape{config.heads, one[0], one[1]} : Shape{config.heads, one[0]};
}

Shape WithoutFirst(const Shape& shape) {
  Shape rest;
  for (int i = 1; i < shape.rank; ++i) rest.dims[rest.rank++] = shape[i];
  return rest;
}

}  // namespace

absl::StatusOr<TrainedMemory> TrainedMemory::Take(const LayerBuilder& builder,
                                                  const TrainedMemoryConfig& config,
                                                  std::span<const MemoryTensorName> tensors) {
  CHECK_EQ(static_cast<int>(tensors.size()), config.network.tensors());
  TrainedMemory memory;
  memory.config_ = config;
  memory.layer_ = builder.layer;
  memory.place_ = static_cast<int>(builder.network.trained.size());
  builder.network.trained.push_back({.layer = builder.layer,
                                     .step = config.step,
                                     .anchor_period = config.anchor_period,
                                     .loss_scale = config.loss_scale,
                                     .prefix = config.prefix});
  for (int t = 0; t < config.network.tensors(); ++t) {
    const MemoryTensorName& tensor = tensors[static_cast<size_t>(t)];
    MNEME_ASSIGN_OR_RETURN(TensorView values,
                           builder.weights().Floats(builder.Weight(tensor.weight), tensor.stored,
                                                    WeightInit::kNormal));
    values.shape = OfAllHeads(config, t);
    memory.learned_.at[t] = values;
  }
  const bool f64 = builder.network.state_format.memory_dtype == DType::kF64;
  const auto add = [&](const char* name, bool is_weights) {
    Copy copy;
    for (int t = 0; t < config.network.tensors(); ++t) {
      const Shape all = OfAllHeads(config, t);
      const bool shared = is_weights || config.prefix > 0;
      copy.push_back(builder.AddState(
          {.name = absl::StrCat(name, ".", tensors[static_cast<size_t>(t)].field),
           .dtype = f64 ? DType::kF64 : DType::kF32,
           .shape = all.rank == 3 ? Shape{1, all[0], all[1], all[2]} : Shape{1, all[0], all[1]},
           .initial = shared ? StateInitial::kShared : StateInitial::kZero,
           .guard = StateGuard::kFed}));
    }
    return copy;
  };
  memory.weights_ = add("memory", true);
  if (config.momentum) memory.momenta_ = add("momentum", false);
  if (config.anchor_period != 0 && config.anchor_period != config.step) {
    memory.anchors_ = add("anchor", true);
  }
  if (config.frozen_period != 0) memory.frozen_ = add("frozen", true);
  if (config.step > 1) memory.gradients_ = add("gradient", false);
  return memory;
}

NeuralMemoryArgs TrainedMemory::Args(const ForwardContext& ctx, const RowIndex& rows) const {
  NeuralMemoryArgs args = {.network = config_.network,
                           .rate_scale = config_.rate_scale,
                           .step = config_.step,
                           .anchor_period = config_.anchor_period,
                           .frozen_period = config_.frozen_period,
                           .read = config_.read,
                           .positions = rows.token_positions,
                           .first_position = ctx.prepares ? 0 : ctx.prefix,
                           .segments = rows.segments};
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
  if (ctx.initial == nullptr) args.initial_weights = learned_;
  if (config_.anchor_period == 0) args.initial_anchor = learned_;
  return args;
}

void TrainedMemory::Train(ForwardContext& ctx, NeuralMemoryArgs args) const {
  const bool surprises = !ctx.surprise.values.empty();
  if (surprises || ctx.observer != nullptr) {
    const Shape pairs{args.k.shape[0], args.k.shape[1]};
    args.loss =
        surprises ? ctx.Temp(pairs) : ctx.observer->Scratch(ctx.backend.activation_dtype(), pairs);
  }
  ctx.kernels().NeuralMemory(args);
  if (surprises) {
    ctx.kernels().Surprise({.loss = args.loss,
                            .read = args.out,
                            .places = ctx.surprise.places,
                            .surprise = ctx.surprise.Of(place_)});
  }
  Tell(ctx, "loss", args.loss, config_.loss_scale);
  Tell(ctx, "theta", args.rate, config_.rate_scale / (2 * config_.loss_scale));
}

void TrainedMemory::TellProduct(ForwardContext& ctx, absl::string_view name, const TensorView& x,
                                std::span<const PackedMatrix> weights) const {
  if (ctx.observer == nullptr) return;
  const TensorView y = ctx.observer->Scratch(ctx.backend.activation_dtype(),
                                             {x.shape[0], weights.front().out_features});
  const LinearArgs product[] = {{.x = x, .weights = weights, .y = y}};
  ctx.kernels().Linear(product);
  Tell(ctx, name, y);
}

}  // namespace mneme
