#include "models/mixers/delta_memory.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/mixers/memory_fields.h"

namespace mneme {
namespace {

// Weight of one of the three convolutions, [channels, width]. Without convolutions upstream applies
// silu to the projection, which is a convolution of width 1 by one.
absl::StatusOr<TensorView> TakeConvolution(const LayerBuilder& builder, absl::string_view name,
                                           int channels, int width) {
  TensorView weight;
  if (width == 0) {
    MNEME_ASSIGN_OR_RETURN(weight, builder.weights().Constant(std::vector<float>(channels, 1.0f)));
    weight.shape = {channels, 1};
  } else {
    MNEME_ASSIGN_OR_RETURN(weight,
                           builder.weights().Floats(builder.Weight(name), {channels, 1, width},
                                                    WeightInit::kConvolution));
    weight.shape = {channels, width};
  }
  return weight;
}

TensorView Reshaped(TensorView view, Shape shape) {
  view.shape = shape;
  return view;
}

}  // namespace

absl::StatusOr<DeltaMemory> DeltaMemory::Make(const LayerBuilder& builder,
                                              const GatedDeltaConfig& config,
                                              std::initializer_list<const Projection*> convolved) {
  Weights& weights = builder.weights();
  const int keys = config.key_channels();
  const int values = config.value_channels();

  DeltaMemory memory;
  memory.config_ = config;
  MNEME_ASSIGN_OR_RETURN(memory.q_conv_,
                         TakeConvolution(builder, "attn.q_conv1d.weight", keys, config.conv_width));
  MNEME_ASSIGN_OR_RETURN(memory.k_conv_,
                         TakeConvolution(builder, "attn.k_conv1d.weight", keys, config.conv_width));
  MNEME_ASSIGN_OR_RETURN(
      memory.v_conv_, TakeConvolution(builder, "attn.v_conv1d.weight", values, config.conv_width));
  MNEME_ASSIGN_OR_RETURN(memory.a_log_, weights.Floats(builder.Weight("attn.A_log"),
                                                       {config.value_heads}, WeightInit::kDecay));
  MNEME_ASSIGN_OR_RETURN(
      memory.dt_bias_,
      weights.Floats(builder.Weight("attn.dt_bias"), {config.value_heads}, WeightInit::kTimeStep));
  MNEME_ASSIGN_OR_RETURN(memory.output_,
                         MemoryOutput::Make(builder, {.norm = "attn.o_norm",
                                                      .eps = builder.norm_eps,
                                                      .heads = config.value_heads,
                                                      .dim = config.value_dim,
                                                      .gate = config.gate_activation}));
  weights.Ignore(builder.Weight("attn.D"));  // of old files; upstream never used it

  const int memories = config.all_memories();
  const int history = static_cast<int>(memory.q_conv_.shape[1]) - 1;
  const bool bf16 = std::all_of(convolved.begin(), convolved.end(), [](const Projection* from) {
    return from->weights.front().dtype == DType::kBF16;
  });
  memory.pending_ = PendingFields(builder);
  const MemoryFields fields = MemoryFields::Flagged(builder, memories);
  memory.written_ = fields.written();
  memory.q_window_ = fields.AddWindow("q_window", history, keys, bf16);
  memory.k_window_ = fields.AddWindow("k_window", history, keys, bf16);
  memory.v_window_ = fields.AddWindow("v_window", history, values, bf16);
  memory.memory_ =
      fields.AddMatrices("memory", config.value_heads, config.value_dim, config.key_dim);
  memory.pending_.Add(builder, memory.memory_,
                      {.memories = memories,
                       .heads = config.heads,
                       .key_dim = config.key_dim,
                       .value_heads = config.value_heads,
                       .value_dim = config.value_dim});
  return memory;
}

QueryKeyNorms DeltaMemory::Norms() const {
  return {.q = {.scale = 1.0f / std::sqrt(static_cast<float>(config_.key_dim))}};
}

TensorView DeltaMemory::WriteAndRead(ForwardContext& ctx, const DeltaStreams& streams,
                                     const StepEntries& step) const {
  Kernels& kernels = ctx.kernels();
  const Segments& segments = step.segments;
  const int64_t entries = step.count;
  const TensorView q = ctx.Temp({entries, config_.heads, config_.key_dim});
  const TensorView k = ctx.Temp({entries, config_.heads, config_.key_dim});
  const TensorView v = ctx.Temp({entries, config_.value_heads, config_.value_dim});
  const Shape key_rows{entries, config_.key_channels()};
  const Shape value_rows{entries, config_.value_channels()};
  const TensorView log_decay = ctx.Temp({entries, config_.value_heads});
  const TensorView beta = ctx.Temp({entries, config_.value_heads});
  const DeltaMemoryPassArgs pass = {
      .q = {.x = streams.q,
            .entry_rows = streams.q_rows,
            .weight = q_conv_,
            .segments = segments,
            .window = ctx.State(q_window_),
            .y = Reshaped(q, key_rows)},
      .k = {.x = streams.k,
            .entry_rows = streams.kv_rows,
            .weight = k_conv_,
            .segments = segments,
            .window = ctx.State(k_window_),
            .y = Reshaped(k, key_rows)},
      .v = {.x = streams.v,
            .entry_rows = streams.kv_rows,
            .weight = v_conv_,
            .segments = segments,
            .window = ctx.State(v_window_),
            .y = Reshaped(v, value_rows)},
      .norms = Norms(),
      .gates = {.a = streams.a,
                .b = streams.b,
                .a_log = a_log_,
                .dt_bias = dt_bias_,
                .entry_rows = streams.kv_rows,
                .beta_scale = config_.allow_negative_eigenvalues ? 2.0f : 1.0f,
                .log_decay = log_decay,
                .beta = beta},
      .rule = {.q = q,
               .k = k,
               .v = v,
               .log_decay = log_decay,
               .beta = beta,
               .segments = segments,
               .state = ctx.State(memory_),
               .pending = pending_.View(ctx.slabs),
               .out = v}};
  if (!kernels.DeltaMemoryPass(pass)) {
    const ShortConvArgs convolutions[] = {pass.q, pass.k, pass.v};
    kernels.ShortConv(convolutions);
    const QueryKeyNorms& norms = pass.norms;
    kernels.L2Norm({.x = q, .scale = norms.q.scale, .eps = norms.q.eps, .y = q});
    kernels.L2Norm({.x = k, .scale = norms.k.scale, .eps = norms.k.eps, .y = k});
    kernels.DeltaGates(pass.gates);
    kernels.MatrixMemory(pass.rule);
  }
  return Reshaped(v, value_rows);
}

DeltaMixer DeltaMemory::Fused(const Slabs& slabs, const Norm& norm) const {
  return {.norm = norm.weight,
          .norm_eps = norm.eps,
          .heads = config_.heads,
          .key_dim = config_.key_dim,
          .value_heads = config_.value_heads,
          .value_dim = config_.value_dim,
          .q_conv = q_conv_,
          .k_conv = k_conv_,
          .v_conv = v_conv_,
          .q_window = slabs.View(q_window_),
          .k_window = slabs.View(k_window_),
          .v_window = slabs.View(v_window_),
          .norms = Norms(),
          .a_log = a_log_,
          .dt_bias = dt_bias_,
          .beta_scale = config_.allow_negative_eigenvalues ? 2.0f : 1.0f,
          .written = slabs.View(written_),
          .state = slabs.View(memory_),
          .pending = pending_.View(slabs),
          .out_norm = output_.norm(),
          .out_norm_eps = output_.eps(),
          .out_proj = output_.projection()};
}

}  // namespace mneme
