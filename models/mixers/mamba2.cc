// One token, per head h, which has its b and q from group h / (heads / groups):
//   [z; u; b; q; t] = Win x;   u, b, q = silu(conv(u)), silu(conv(b)), silu(conv(q))
//   s = min(max(softplus(t + dt_bias), least), most)
//   S <- exp(-exp(A_log) s) S + (s u) b^T;   y = S q + D u
//   out = Wout RmsNorm( y * silu(z) )                          or in another order, or without norm

#include "models/mixers/mamba2.h"

#include <array>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "kernels/recurrent_steps.h"
#include "models/mixers/entry_streams.h"
#include "models/mixers/memory_fields.h"
#include "models/mixers/pending_fields.h"
#include "models/mixers/state_space.h"
#include "models/projection.h"
#include "models/step_entries.h"

namespace mneme {
namespace {

// D of each channel.
absl::StatusOr<TensorView> TakeSkip(const LayerBuilder& builder, const Mamba2Config& config) {
  const std::string name = builder.Weight("mixer.D");
  if (config.skip_by_channel) {
    return builder.weights().Floats(name, {config.channels()}, WeightInit::kOnes);
  }
  MNEME_ASSIGN_OR_RETURN(const std::vector<float> by_head,
                         builder.weights().Values(name, {config.heads}, WeightInit::kOnes));
  std::vector<float> by_channel;
  for (const float value : by_head) by_channel.insert(by_channel.end(), config.head_dim, value);
  return builder.weights().Constant(by_channel);
}

class Mamba2 final : public SequenceMixer {
 public:
  static absl::StatusOr<std::unique_ptr<SequenceMixer>> Make(const LayerBuilder& builder,
                                                             const Mamba2Config& config) {
    const int channels = config.channels(), shared = config.groups * config.states;
    const Bias bias = config.bias ? Bias::kAdded : Bias::kNone;
    Weights& weights = builder.weights();
    auto mixer = std::make_unique<Mamba2>();
    mixer->config_ = config;
    MNEME_ASSIGN_OR_RETURN(mixer->in_, TakeProjectionParts(builder, "mixer.in_proj",
                                                           std::array{channels, channels, shared,
                                                                      shared, config.heads},
                                                           builder.model_dim, bias));
    mixer->pending_ = PendingFields::Of(builder, kRule, config.states, config.head_dim);
    const MemoryFields fields(builder, /*routing=*/{});
    const Projection* const convolved[] = {&mixer->in_[kU], &mixer->in_[kB], &mixer->in_[kQ]};
    const char* const names[] = {"u", "b", "c"};
    MNEME_ASSIGN_OR_RETURN(
        mixer->convolutions_,
        StreamConvolution::Take(fields, convolved, names, config.conv_width, config.conv_bias));
    MNEME_ASSIGN_OR_RETURN(mixer->dt_bias_, weights.Floats(builder.Weight("mixer.dt_bias"),
                                                           {config.heads}, WeightInit::kTimeStep));
    MNEME_ASSIGN_OR_RETURN(mixer->rates_, TakeRates(builder, config.heads, /*states=*/0));
    MNEME_ASSIGN_OR_RETURN(mixer->skip_, TakeSkip(builder, config));
    mixer->memory_ = fields.AddMatrices("memory", config.heads, config.head_dim, config.states);
    mixer->pending_.Add(builder, mixer->memory_,
                        {.heads = config.groups,
                         .key_dim = config.states,
                         .value_heads = config.heads,
                         .value_dim = config.head_dim});
    if (config.output != Mamba2Config::Output::kGate) {
      mixer->norm_.eps = builder.norm_eps;
      MNEME_ASSIGN_OR_RETURN(
          mixer->norm_.weight,
          weights.Floats(builder.Weight("mixer.norm.weight"), {channels}, WeightInit::kOnes));
      mixer->norm_.weight.shape = {config.norm_groups, channels / config.norm_groups};
    }
    MNEME_ASSIGN_OR_RETURN(
        mixer->out_, TakeProjection(builder, "mixer.out_proj", builder.model_dim, channels, bias));
    return mixer;
  }

  bool uses_row_index() const override { return true; }

  void Settle(ForwardContext& ctx, const TensorView& slots) const override {
    pending_.Settle(ctx, slots, memory_, /*written=*/{});
  }

  void Forward(ForwardContext& ctx, const Norm& norm, TensorView hidden) const override {
    const Workspace::Scope scope(ctx.workspace);
    Kernels& kernels = ctx.kernels();
    std::vector<std::span<const PackedMatrix>> products;
    for (const Projection& part : in_) products.push_back(part.weights);
    const StepEntries entries = EnterRows(ctx, norm, hidden, products);
    const Shape shape{entries.count, config_.channels()};
    std::vector<TensorView> streams;
    std::vector<ProjectionArgs> projections;
    for (int i = kZ; i <= kT; ++i) {
      const bool convolved = i != kZ && i != kT;
      streams.push_back(convolved ? TempOfProjection(ctx, entries.x, in_[i])
                                  : ctx.Temp({entries.count, in_[i].out()}));
      projections.push_back({.projection = in_[i], .x = entries.x, .y = streams.back()});
    }
    Project(kernels, projections);
    std::vector<ShortConvArgs> convolutions;
    for (int i = kU; i <= kQ; ++i) {
      const TensorView y = ctx.Temp({entries.count, in_[i].out()});
      convolutions.push_back(convolutions_[i - kU].Args(ctx, streams[i], entries.segments, y));
      streams[i] = y;
    }

    const TensorView u = ByHead(streams[kU], config_.heads);
    const TensorView log_decay = ctx.Temp({entries.count, config_.heads});
    const TensorView v = ctx.Temp(u.shape), read = Flat(v);
    const TensorView y = ctx.TempForProducts(shape, {out_.weights});
    using Order = Mamba2Config::Output;
    const bool gated = config_.output != Order::kNormThenGate;
    Mamba2StepArgs step = {.discretize = {.u = u,
                                          .dt = streams[kT],
                                          .dt_bias = dt_bias_,
                                          .a = rates_,
                                          .least_step = config_.least_step,
                                          .most_step = config_.most_step,
                                          .log_decay = log_decay,
                                          .v = v},
                           .memory = {.rule = kRule,
                                      .q = ByHead(streams[kQ], config_.groups),
                                      .k = ByHead(streams[kB], config_.groups),
                                      .v = v,
                                      .log_decay = log_decay,
                                      .segments = entries.segments,
                                      .state = ctx.State(memory_),
                                      .pending = pending_.View(ctx.slabs),
                                      .out = v},
                           .skip = {.x = streams[kU], .scale = skip_, .y = read}};
    if (gated) {
      step.gate = {.gate = streams[kZ], .up = read, .y = config_.output == Order::kGate ? y : read};
    }
    const bool normed = config_.output != Order::kGate;
    const GatedRmsNormArgs norm_of_parts = {
        .x = ByHead(read, config_.norm_groups),
        .gate = gated ? TensorView{} : ByHead(streams[kZ], config_.norm_groups),
        .weight = norm_.weight,
        .eps = norm_.eps,
        .y = ByHead(y, config_.norm_groups)};
    RecurrentSteps* const steps = RecurrentStepsOf(kernels);
    if (steps == nullptr || step.memory.segments.longest != 1 ||
        !steps->Mamba2LayerStep({.convolutions = convolutions,
                                 .step = step,
                                 .norm = normed ? &norm_of_parts : nullptr})) {
      kernels.ShortConv(convolutions);
      kernels.Discretize(step.discretize);
      kernels.MatrixMemory(step.memory);
      const bool fused =
          gated && normed &&
          kernels.Mamba2Output({.skip = step.skip, .gate = step.gate, .norm = norm_of_parts});
      if (!fused) {
        kernels.AddScaled(step.skip);
        if (gated) kernels.SwiGlu(step.gate);
        if (normed) kernels.GatedRmsNorm(norm_of_parts);
      }
    }
    AddProjection(kernels, out_, y, hidden);
  }

 private:
  enum { kZ, kU, kB, kQ, kT };
  static constexpr MatrixRule kRule = {.decay = MatrixRule::Decay::kHead,
                                       .correction = MatrixRule::Correction::kNone};

  Mamba2Config config_;
  std::vector<Projection> in_;
  std::vector<StreamConvolution> convolutions_;
  TensorView dt_bias_, rates_;  // [heads] f32
  TensorView skip_;             // [channels] f32
  StateField memory_;
  PendingFields pending_;
  Norm norm_;       // [norm_groups, channels / norm_groups], or empty
  Projection out_;  // [model_dim, channels]
};

}  // namespace

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeMamba2(const LayerBuilder& builder,
                                                          const Mamba2Config& config) {
  return Mamba2::Make(builder, config);
}

}  // namespace mneme
