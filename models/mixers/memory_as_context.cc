// A segment's answers follow from the memory that the one before it leaves. So steps that feed more
// than a token a row are cut: each round has the tokens of every row's next segment, as a step of
// its own.
#include "models/mixers/memory_as_context.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "models/mixers/entry_streams.h"
#include "models/mixers/rope_frequencies.h"
#include "models/projection.h"
#include "models/step_rounds.h"

namespace mneme {
namespace {

class MemoryAsContext final : public SequenceMixer {
 public:
  static absl::StatusOr<std::unique_ptr<SequenceMixer>> Make(const LayerBuilder& builder,
                                                             const MemoryAsContextConfig& config) {
    const int channels = config.heads * config.head_dim, model_dim = builder.model_dim;
    Weights& weights = builder.weights();
    auto mixer = std::make_unique<MemoryAsContext>();
    mixer->config_ = config;
    MNEME_ASSIGN_OR_RETURN(mixer->memory_, NeuralMemory::Make(builder, config.memory));
    for (const auto& [norm, name] :
         {std::pair(&mixer->memory_norm_, "memory_layernorm.weight"),
          std::pair(&mixer->memory_output_norm_, "memory_output_norm.weight"),
          std::pair(&mixer->attention_output_norm_, "attention_output_norm.weight")}) {
      MNEME_ASSIGN_OR_RETURN(
          *norm, TakeNorm(weights, builder.prefix, {name}, model_dim, builder.norm_eps));
    }
    for (const auto& [projection, name] : {std::pair(&mixer->q_proj_, "attention.q_proj"),
                                           std::pair(&mixer->k_proj_, "attention.k_proj"),
                                           std::pair(&mixer->v_proj_, "attention.v_proj")}) {
      MNEME_ASSIGN_OR_RETURN(*projection, TakeProjection(builder, name, channels, model_dim));
    }
    MNEME_ASSIGN_OR_RETURN(mixer->o_proj_,
                           TakeProjection(builder, "attention.o_proj", model_dim, channels));
    MNEME_ASSIGN_OR_RETURN(mixer->frequencies_,
                           TakeExactFrequencies(weights, config.rope_theta, config.head_dim));
    MNEME_ASSIGN_OR_RETURN(
        mixer->ones_, weights.Constant(std::vector<float>(static_cast<size_t>(model_dim), 1.0f)));
    if (config.persistent > 0) {
      MNEME_ASSIGN_OR_RETURN(mixer->persistent_,
                             weights.Table(builder.Weight("attention.persistent_memory"),
                                           config.persistent, model_dim));
    }
    const bool f64 = builder.network.state_format.memory_dtype == DType::kF64;
    const Shape persistent{config.persistent, config.heads, config.head_dim};
    for (TensorView* rows : {&mixer->persistent_keys_, &mixer->persistent_values_}) {
      MNEME_ASSIGN_OR_RETURN(*rows, weights.Reserve(f64 ? DType::kF64 : DType::kF32, persistent));
    }
    StateField field = {.dtype = builder.network.state_format.context_dtype,
                        .shape = {1, config.segment, config.heads, config.head_dim},
                        .guard = StateGuard::kRing,
                        .role = StateRole::kAppendOnly};
    for (const auto& [handle, name] :
         {std::pair(&mixer->keys_, "keys"), std::pair(&mixer->values_, "values"),
          std::pair(&mixer->memory_keys_, "memory_keys"),
          std::pair(&mixer->memory_values_, "memory_values")}) {
      field.name = name;
      *handle = builder.AddState(field);
    }
    return mixer;
  }

  bool uses_row_index() const override { return true; }

  absl::Status Prepare(Backend& backend) const override {
    const int64_t rows = config_.persistent;
    if (rows == 0) return absl::OkStatus();
    std::vector<int32_t> numbers(static_cast<size_t>(rows));
    std::iota(numbers.begin(), numbers.end(), 0);
    MNEME_ASSIGN_OR_RETURN(const Tensor ids, Tensor::Allocate(backend, DType::kI32, {rows}));
    backend.CopyFromHost(ids.view().data, numbers.data(), ids.view().bytes());
    MNEME_ASSIGN_OR_RETURN(const Tensor x, Tensor::Allocate(backend, backend.activation_dtype(),
                                                            {rows, persistent_.shape[1]}));
    backend.kernels().Embedding({.ids = ids.view(), .table = persistent_, .y = x.view()});
    Project(backend.kernels(),
            {{.projection = k_proj_, .x = x.view(), .y = Flat(persistent_keys_)},
             {.projection = v_proj_, .x = x.view(), .y = Flat(persistent_values_)}});
    return backend.Synchronize();
  }

  void Forward(ForwardContext& ctx, const Norm& norm, TensorView hidden) const override {
    const Workspace::Scope scope(ctx.workspace);
    Kernels& kernels = ctx.kernels();
    const int tokens = ctx.batch.tokens;
    const int longest = ctx.batch.longest_row > 0 ? ctx.batch.longest_row : tokens;
    if (tokens == 0) return;
    const TensorView x = ctx.Temp(hidden.shape);
    ApplyNorm(kernels, norm, hidden, x);
    if (longest == 1) {
      const TensorView answer = ctx.Temp(hidden.shape);
      Round(ctx, x, answer);
      kernels.AddScaled({.x = answer, .scale = ones_, .y = hidden});
      return;
    }
    const StepRounds rounds(ctx, longest, config_.segment);
    const int room = rounds.room();
    // Tokens of other rounds find the row behind the round's own: zeros.
    const TensorView answers = ctx.Temp({room + 1, hidden.shape[1]});
    TensorView answer = answers;
    answer.shape.dims[0] = room;
    const int64_t bytes = answers.bytes() / (room + 1);
    ctx.backend.Zero(answers.as<std::byte>() + room * bytes, bytes);
    const TensorView& places = rounds.places();
    const TensorView gathered = ctx.Temp(hidden.shape);
    for (int round = 0; round < rounds.count(); ++round) {
      const Workspace::Scope of_round(ctx.workspace);
      const auto [part, part_tokens] = rounds.Cut(round);
      ForwardContext inner{.backend = ctx.backend,
                           .workspace = ctx.workspace,
                           .batch = part,
                           .slabs = ctx.slabs,
                           .contexts = ctx.contexts,
                           .surprise = {.values = ctx.surprise.values, .places = places},
                           .observer = ctx.observer,
                           .observed_places = places};
      inner.row_index = IndexRows(inner);
      const TensorView part_x = ctx.Temp({room, hidden.shape[1]});
      kernels.GatherRows({.x = x, .indices = part_tokens, .y = part_x});
      Round(inner, part_x, answer);
      kernels.GatherRows({.x = answers, .indices = places, .y = gathered});
      kernels.AddScaled({.x = gathered, .scale = ones_, .y = hidden});
    }
  }

 private:
  // Tokens of which no row's are in two segments: what they add to the residual stream.
  void Round(ForwardContext& ctx, const TensorView& x, const TensorView& answer) const {
    const Workspace::Scope scope(ctx.workspace);
    Kernels& kernels = ctx.kernels();
    const TensorView recalled = ctx.Temp(x.shape), seen = ctx.Temp(x.shape);
    memory_.Recall(ctx, ctx.row_index, x, recalled);
    Attend(ctx, x, recalled, seen);
    const TensorView normed = ctx.TempForProducts(x.shape, memory_.products());
    ApplyNorm(kernels, memory_norm_, seen, normed);
    memory_.Feed(ctx, ctx.row_index, normed, answer, /*accumulate=*/false);
    ApplyNorm(kernels, memory_output_norm_, answer, answer);
    ApplyNorm(kernels, attention_output_norm_, seen, seen);
    if (config_.activation != Activation::kIdentity) {
      const ActivateArgs activations[] = {
          {.x = answer, .activation = config_.activation, .y = answer},
          {.x = seen, .activation = config_.activation, .y = seen}};
      kernels.Activate(std::span(activations).first(config_.activates_both ? 2 : 1));
    }
    kernels.Multiply({.a = answer, .b = seen, .y = answer});
  }

  void Attend(ForwardContext& ctx, const TensorView& x, const TensorView& recalled,
              const TensorView& y) const {
    const Workspace::Scope scope(ctx.workspace);
    Kernels& kernels = ctx.kernels();
    const Shape channels{x.shape[0], int64_t{config_.heads} * config_.head_dim};
    const auto temp = [&] { return ByHead(ctx.Temp(channels), config_.heads); };
    const TensorView q = temp(), k = temp(), v = temp(), memory_k = temp(), memory_v = temp();
    Project(kernels, {{.projection = q_proj_, .x = x, .y = Flat(q)},
                      {.projection = k_proj_, .x = x, .y = Flat(k)},
                      {.projection = v_proj_, .x = x, .y = Flat(v)},
                      {.projection = k_proj_, .x = recalled, .y = Flat(memory_k)},
                      {.projection = v_proj_, .x = recalled, .y = Flat(memory_v)}});
    for (const TensorView& turned : {q, k, memory_k}) {
      kernels.Rope({.x = turned,
                    .positions = ctx.row_index.token_positions,
                    .frequencies = frequencies_,
                    .period = config_.segment,
                    .interleaved = config_.rope_interleaved,
                    .y = turned});
    }
    const TensorView read = temp();
    const bool persistent = config_.persistent > 0;
    kernels.Attention({.q = q,
                       .k = k,
                       .v = v,
                       .row_offsets = ctx.batch.row_offsets,
                       .slots = ctx.batch.slots,
                       .positions = ctx.batch.positions,
                       .longest_row = ctx.batch.longest_row,
                       .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
                       .keys = ctx.Context(keys_),
                       .values = ctx.Context(values_),
                       .prefix_keys = persistent ? persistent_keys_ : TensorView{},
                       .prefix_values = persistent ? persistent_values_ : TensorView{},
                       .segment = config_.segment,
                       .other_k = memory_k,
                       .other_v = memory_v,
                       .other_keys = ctx.Context(memory_keys_),
                       .other_values = ctx.Context(memory_values_),
                       .out = read});
    const LinearArgs output[] = {{.x = Flat(read), .weights = o_proj_.weights, .y = y}};
    kernels.Linear(output);
  }

  MemoryAsContextConfig config_;
  NeuralMemory memory_;
  Norm memory_norm_, memory_output_norm_, attention_output_norm_;
  Projection q_proj_, k_proj_, v_proj_, o_proj_;
  TensorView frequencies_;                          // [2, head_dim / 2] f32
  TensorView ones_;                                 // [model_dim] f32
  TensorView persistent_;                           // [persistent, model_dim] as stored
  TensorView persistent_keys_, persistent_values_;  // [persistent, heads, head_dim] act
  StateField keys_, values_, memory_keys_, memory_values_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeMemoryAsContext(
    const LayerBuilder& builder, const MemoryAsContextConfig& config) {
  return MemoryAsContext::Make(builder, config);
}

}  // namespace mneme
