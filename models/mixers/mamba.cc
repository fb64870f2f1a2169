// One token, `states` numbers h_c for each channel c:
//   [u; z] = Win x;   u = silu(conv(u));   [t; b; q] = Wx u
//   t, b, q <- RmsNorm(t), RmsNorm(b), RmsNorm(q)                           Falcon-Mamba only
//   s = softplus(Wdt t + b_dt)
//   h_c <- exp(-exp(A_log)_c s_c) h_c + s_c u_c b;   y_c = h_c . q + D_c u_c
//   out = Wout( y * silu(z) )

#include "models/mixers/mamba.h"

#include <array>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "models/mixers/memory_fields.h"
#include "models/mixers/state_space.h"
#include "models/projection.h"
#include "models/step_entries.h"

namespace mneme {
namespace {

class Mamba final : public SequenceMixer {
 public:
  static absl::StatusOr<std::unique_ptr<SequenceMixer>> Make(const LayerBuilder& builder,
                                                             const MambaConfig& config) {
    const int channels = config.channels, states = config.states;
    const Bias bias = config.bias ? Bias::kAdded : Bias::kNone;
    auto mixer = std::make_unique<Mamba>();
    mixer->config_ = config;
    MNEME_ASSIGN_OR_RETURN(
        mixer->in_, TakeProjectionParts(builder, "mixer.in_proj", std::array{channels, channels},
                                        builder.model_dim, bias));
    const MemoryFields fields(builder, /*routing=*/{});
    const Projection* const convolved[] = {&mixer->in_[kU]};
    const char* const names[] = {"u"};
    MNEME_ASSIGN_OR_RETURN(
        mixer->convolutions_,
        StreamConvolution::Take(fields, convolved, names, config.conv_width, config.conv_bias));
    MNEME_ASSIGN_OR_RETURN(mixer->selection_,
                           TakeProjectionParts(builder, "mixer.x_proj",
                                               std::array{config.rank, states, states}, channels));
    MNEME_ASSIGN_OR_RETURN(mixer->step_,
                           TakeProjection(builder, "mixer.dt_proj", channels, config.rank));
    Weights& weights = builder.weights();
    MNEME_ASSIGN_OR_RETURN(mixer->dt_bias_, weights.Floats(builder.Weight("mixer.dt_proj.bias"),
                                                           {channels}, WeightInit::kTimeStep));
    MNEME_ASSIGN_OR_RETURN(mixer->rates_, TakeRates(builder, channels, states));
    MNEME_ASSIGN_OR_RETURN(
        mixer->skip_, weights.Floats(builder.Weight("mixer.D"), {channels}, WeightInit::kOnes));
    if (config.inner_norm_eps.has_value()) {
      for (const Projection& part : mixer->selection_) {
        MNEME_ASSIGN_OR_RETURN(const TensorView ones, weights.Constant(std::vector<float>(
                                                          static_cast<size_t>(part.out()), 1.0f)));
        mixer->norms_.push_back(ones);
      }
    }
    mixer->state_ = fields.AddExactMatrices("state", /*heads=*/1, states, channels);
    MNEME_ASSIGN_OR_RETURN(
        mixer->out_, TakeProjection(builder, "mixer.out_proj", builder.model_dim, channels, bias));
    return mixer;
  }

  bool uses_row_index() const override { return true; }

  void Forward(ForwardContext& ctx, const Norm& norm, TensorView hidden) const override {
    const Workspace::Scope scope(ctx.workspace);
    Kernels& kernels = ctx.kernels();
    const std::span<const PackedMatrix> products[] = {in_[kU].weights, in_[kZ].weights};
    const StepEntries entries = EnterRows(ctx, norm, hidden, products);
    const Shape shape{entries.count, config_.channels};
    const TensorView raw = TempOfProjection(ctx, entries.x, in_[kU]);
    const TensorView u = ctx.Temp(shape), gate = ctx.Temp(shape);
    Project(kernels, {{.projection = in_[kU], .x = entries.x, .y = raw},
                      {.projection = in_[kZ], .x = entries.x, .y = gate}});
    const ShortConvArgs convolution[] = {convolutions_[0].Args(ctx, raw, entries.segments, u)};
    kernels.ShortConv(convolution);

    std::vector<TensorView> selected;
    std::vector<ProjectionArgs> selections;
    for (const Projection& part : selection_) {
      selected.push_back(ctx.Temp({entries.count, part.out()}));
      selections.push_back({.projection = part, .x = u, .y = selected.back()});
    }
    Project(kernels, selections);
    for (size_t i = 0; i < norms_.size(); ++i) {
      kernels.RmsNorm({.x = selected[i],
                       .weight = norms_[i],
                       .eps = *config_.inner_norm_eps,
                       .y = selected[i]});
    }
    const TensorView dt = ctx.Temp(shape);
    Project(kernels, {{.projection = step_, .x = selected[kStep], .y = dt}});
    const TensorView y = ctx.TempForProducts(shape, {out_.weights});
    kernels.SelectiveScan({.u = u,
                           .dt = dt,
                           .b = selected[kInput],
                           .c = selected[kOutput],
                           .a = rates_,
                           .dt_bias = dt_bias_,
                           .skip = skip_,
                           .gate = gate,
                           .segments = entries.segments,
                           .state = ctx.State(state_),
                           .y = y});
    AddProjection(kernels, out_, y, hidden);
  }

 private:
  enum { kU, kZ };
  enum { kStep, kInput, kOutput };

  MambaConfig config_;
  std::vector<Projection> in_;  // [channels, model_dim] each
  std::vector<StreamConvolution> convolutions_;
  std::vector<Projection> selection_;  // [rank or states, channels]
  std::vector<TensorView> norms_;      // ones, of each of these; or none
  Projection step_;                    // [channels, rank]
  TensorView dt_bias_, skip_;          // [channels] f32
  TensorView rates_;                   // [states, channels] f32
  StateField state_;
  Projection out_;  // [model_dim, channels]
};

}  // namespace

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeMamba(const LayerBuilder& builder,
                                                         const MambaConfig& config) {
  return Mamba::Make(builder, config);
}

}  // namespace mneme
