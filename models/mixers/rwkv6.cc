// One token; e = x_before - x; for n = r, w, k, v, g; per head:
//   x_n = x + e (X_n tanh(M_n (x + e mu)) + b_n)
//   r, k, v, g = Wr x_r, Wk x_k, Wv x_v, Wg x_g
//   d = exp( -exp(W2 tanh(W1 x_w) + b_w) )
//   o = S r + (r . (bonus * k)) v;   S <- S diag(d) + v k^T
//   out = Wo concat( LayerNorm_head(o) * silu(g) )
#include "models/mixers/rwkv6.h"

#include <array>
#include <span>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "models/low_rank.h"
#include "models/mixers/entry_streams.h"
#include "models/mixers/memory_fields.h"
#include "models/token_shift.h"

namespace mneme {
namespace {

class Rwkv6 final : public SequenceMixer {
 public:
  static absl::StatusOr<std::unique_ptr<SequenceMixer>> Make(const LayerBuilder& builder,
                                                             const Rwkv6Config& config) {
    Weights& weights = builder.weights();
    const int model_dim = builder.model_dim;
    const int keys = config.heads * config.key_dim, values = config.heads * config.value_dim;
    auto mixer = std::make_unique<Rwkv6>();
    mixer->config_ = config;
    MNEME_RETURN_IF_ERROR(mixer->TakeMixes(builder));

    const auto matrix = [&](const char* name, int out, int in) {
      return weights.Matrix(builder.Weight(name), out, in);
    };
    MNEME_ASSIGN_OR_RETURN(mixer->r_, matrix("attn.r_proj.linear.weight", keys, model_dim));
    MNEME_ASSIGN_OR_RETURN(mixer->k_, matrix("attn.k_proj.linear.weight", keys, model_dim));
    MNEME_ASSIGN_OR_RETURN(mixer->v_, matrix("attn.v_proj.linear.weight", values, model_dim));
    MNEME_ASSIGN_OR_RETURN(mixer->g_, matrix("attn.g_proj.linear.weight", values, model_dim));
    MNEME_ASSIGN_OR_RETURN(mixer->decay_, TakeLowRank(builder, "attn.w_proj.linear", keys,
                                                      config.decay_rank, Activation::kTanh));
    MNEME_ASSIGN_OR_RETURN(mixer->decay_bias_,
                           TakeLowRankBias(builder, "attn.w_proj.linear", keys));
    mixer->decay_bias_.shape = {1, keys};

    const auto floats = [&](const char* name, Shape stored, WeightInit init) {
      return weights.Floats(builder.Weight(name), stored, init);
    };
    MNEME_ASSIGN_OR_RETURN(
        mixer->bonus_, floats("attn.bonus", {config.heads, config.key_dim}, WeightInit::kNormal));
    MNEME_ASSIGN_OR_RETURN(mixer->norm_,
                           TakeNormOfHeads(weights, builder.Weight("attn.g_norm"), config.heads,
                                           config.value_dim, builder.norm_eps));
    MNEME_ASSIGN_OR_RETURN(mixer->out_, matrix("attn.o_proj.weight", model_dim, values));
    mixer->memory_ = MemoryFields(builder, {})
                         .AddMatrices("memory", config.heads, config.value_dim, config.key_dim);
    return mixer;
  }

  bool uses_row_index() const override { return true; }

  void Forward(ForwardContext& ctx, const Norm& norm, TensorView hidden) const override {
    const Workspace::Scope scope(ctx.workspace);
    Kernels& kernels = ctx.kernels();
    const int heads = config_.heads;
    const int64_t tokens = hidden.shape[0];
    const int64_t keys = heads * int64_t{config_.key_dim};
    const int64_t values = heads * int64_t{config_.value_dim};
    const TensorView x = ctx.Temp(hidden.shape);
    const TensorView shifted = Mix(ctx, norm, hidden, x);

    const TensorView r = ctx.Temp({tokens, keys}), k = ctx.Temp({tokens, keys});
    const TensorView v = ctx.Temp({tokens, values}), g = ctx.Temp({tokens, values});
    const TensorView inner = ctx.Temp({tokens, decay_.rank()});
    const LinearArgs in[] = {{.x = Part(shifted, kR), .weights = {&r_, 1}, .y = r},
                             {.x = Part(shifted, kK), .weights = {&k_, 1}, .y = k},
                             {.x = Part(shifted, kV), .weights = {&v_, 1}, .y = v},
                             {.x = Part(shifted, kG), .weights = {&g_, 1}, .y = g},
                             {.x = Part(shifted, kW), .weights = {&decay_.down, 1}, .y = inner}};
    kernels.Linear(in);
    const TensorView activated = ctx.TempForProducts(inner.shape, {{&decay_.up, 1}});
    const ActivateArgs activation[] = {
        {.x = inner, .activation = decay_.activation, .y = activated}};
    kernels.Activate(activation);
    const TensorView decay = ctx.Temp({tokens, keys});
    const LinearArgs up[] = {
        {.x = activated, .weights = {&decay_.up, 1}, .y = decay, .bias = decay_bias_}};
    kernels.Linear(up);
    const TensorView log_decay = ByHead(decay, heads);
    kernels.DecayGates({.gate = DecayGate::kExponential, .x = log_decay, .log_decay = log_decay});

    const TensorView read = ctx.Temp({tokens, heads, config_.value_dim});
    kernels.MatrixMemory({.rule = kRule,
                          .q = ByHead(r, heads),
                          .k = ByHead(k, heads),
                          .v = ByHead(v, heads),
                          .log_decay = log_decay,
                          .bonus = bonus_,
                          .segments = ctx.row_index.segments,
                          .state = ctx.State(memory_),
                          .out = read});
    ApplyNorm(kernels, norm_, read, read);
    const TensorView y = ctx.TempForProducts({tokens, values}, {{&out_, 1}});
    kernels.SwiGlu({.gate = g, .up = Flat(read), .y = y});
    const LinearArgs out[] = {{.x = y, .weights = {&out_, 1}, .y = hidden, .accumulate = true}};
    kernels.Linear(out);
  }

 private:
  static constexpr MatrixRule kRule = {.decay = MatrixRule::Decay::kKey,
                                       .correction = MatrixRule::Correction::kNone,
                                       .read = MatrixRule::Read::kBeforeWithBonus};
  enum { kR, kW, kK, kV, kG, kMixes };

  // Takes M, X, mu and b. The files hold the rows of all five M one behind the other, and so the
  // columns of all five X.
  absl::Status TakeMixes(const LayerBuilder& builder) {
    Weights& weights = builder.weights();
    const int model_dim = builder.model_dim;
    const std::string down = builder.Weight("attn.x_proj.0.linear.weight");
    const std::string up = builder.Weight("attn.x_proj.2.weight");
    const int stored = weights.Rows(down, /*otherwise=*/kMixes * config_.mix_rank);
    const int rank = stored % kMixes == 0 ? stored / kMixes : config_.mix_rank;
    for (int n = 0; n < kMixes; ++n) {
      MNEME_ASSIGN_OR_RETURN(mix_down_[n],
                             weights.MatrixRows(down, kMixes * rank, model_dim, n * rank, rank));
      MNEME_ASSIGN_OR_RETURN(mix_up_[n],
                             weights.MatrixColumns(up, model_dim, kMixes * rank, n * rank, rank));
    }
    MNEME_ASSIGN_OR_RETURN(TensorView mu, weights.Floats(builder.Weight("attn.x_proj.0.mu"),
                                                         {model_dim}, WeightInit::kNormal));
    mu.shape = {1, model_dim};
    mu_ = mu;
    MNEME_ASSIGN_OR_RETURN(
        const TensorView bias,
        weights.Floats(builder.Weight("attn.x_bias"), {kMixes, model_dim}, WeightInit::kNormal));
    shift_ = MakeTokenShift(builder, "shift", bias);
    return absl::OkStatus();
  }

  // x_n of x = norm(hidden) for all n, [kMixes, tokens, model_dim], for the products.
  TensorView Mix(ForwardContext& ctx, const Norm& norm, const TensorView& hidden,
                 const TensorView& x) const {
    Kernels& kernels = ctx.kernels();
    const int64_t tokens = x.shape[0], model_dim = x.shape[1], rank = mix_down_[0].out_features;
    const TensorView y = ctx.TempForProducts(
        {kMixes, tokens, model_dim}, {{&r_, 1}, {&k_, 1}, {&v_, 1}, {&g_, 1}, {&decay_.down, 1}});
    const Workspace::Scope scope(ctx.workspace);
    TokenShiftArgs shift = {.x = x,
                            .mix = mu_,
                            .segments = ctx.row_index.segments,
                            .last = ctx.State(shift_.last),
                            .advance = false,
                            .y = ctx.TempForProducts({1, tokens, model_dim}, {mix_down_})};
    NormAndShift(kernels, norm, hidden, x, /*keep=*/true, shift);
    const TensorView inner = ctx.Temp({kMixes, tokens, rank});
    const TensorView activated = ctx.TempForProducts(inner.shape, {mix_up_});
    const TensorView mixes = ctx.Temp({kMixes, tokens, model_dim});
    std::array<LinearArgs, kMixes> down, up;
    std::array<ActivateArgs, kMixes> activations;
    for (int n = 0; n < kMixes; ++n) {
      down[n] = {.x = Part(shift.y, 0), .weights = {&mix_down_[n], 1}, .y = Part(inner, n)};
      activations[n] = {
          .x = Part(inner, n), .activation = Activation::kTanh, .y = Part(activated, n)};
      up[n] = {.x = Part(activated, n), .weights = {&mix_up_[n], 1}, .y = Part(mixes, n)};
    }
    kernels.Linear(down);
    kernels.Activate(activations);
    kernels.Linear(up);
    shift.mix = shift_.mix;
    shift.token_mix = mixes;
    shift.advance = true;
    shift.y = y;
    kernels.TokenShift(shift);
    return y;
  }

  Rwkv6Config config_;
  std::array<PackedMatrix, kMixes> mix_down_, mix_up_;  // [rank, model_dim], [model_dim, rank]
  TensorView mu_;                                       // [1, model_dim] f32
  TokenShift shift_;  // of r, w, k, v, g, beside what a token adds
  PackedMatrix r_, k_, v_, g_, out_;
  LowRank decay_;
  TensorView decay_bias_;  // [1, heads * key_dim] f32
  TensorView bonus_;       // [heads, key_dim] f32
  Norm norm_;              // of the memory's output, by head
  StateField memory_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeRwkv6(const LayerBuilder& builder,
                                                         const Rwkv6Config& config) {
  return Rwkv6::Make(builder, config);
}

}  // namespace mneme
