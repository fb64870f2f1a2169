// One token; x_n = x + mix_n (x_before - x) for n = r, w, k, v, a, g; per head:
//   r, k, v = Wr x_r, Wk x_k, Wv x_v;   g = G2 sigmoid(G1 x_g)
//   d = exp( -exp(-1/2) sigmoid(W2 tanh(W1 x_w) + b_w) );   a = sigmoid(A2 A1 x_a + b_a)
//   v = v + (v_first - v) sigmoid(V2 V1 x_v + b_v)             from the second layer on
//   c = normalised(k * k_k);   k = k * (1 + (a - 1) * k_a)
//   S <- S diag(d) - (S c) (a * c)^T + v k^T;   o = S r
//   out = Wo concat( (LayerNorm_head(o) + (r . (k * r_k)) v) * g )
#include "models/mixers/rwkv7.h"

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "kernels/recurrent_steps.h"
#include "models/low_rank.h"
#include "models/mixers/entry_streams.h"
#include "models/mixers/memory_fields.h"
#include "models/token_shift.h"

namespace mneme {
namespace {

class Rwkv7 final : public SequenceMixer {
 public:
  static absl::StatusOr<std::unique_ptr<SequenceMixer>> Make(const LayerBuilder& builder,
                                                             const Rwkv7Config& config) {
    Weights& weights = builder.weights();
    const int model_dim = builder.model_dim;
    const int values = config.heads * config.value_dim;
    const Shape keys_of_heads = {config.heads, config.key_dim};
    auto mixer = std::make_unique<Rwkv7>();
    mixer->config_ = config;
    mixer->first_ = builder.layer == 0;
    MNEME_ASSIGN_OR_RETURN(const TensorView mix, TakeMixes(builder));
    mixer->shift_ = MakeTokenShift(builder, "shift", mix);

    const auto matrix = [&](const char* name, int out, int in) {
      return weights.Matrix(builder.Weight(name), out, in);
    };
    MNEME_ASSIGN_OR_RETURN(mixer->r_, matrix("attn.r_proj.weight", model_dim, model_dim));
    MNEME_ASSIGN_OR_RETURN(mixer->k_, matrix("attn.k_proj.weight", model_dim, model_dim));
    MNEME_ASSIGN_OR_RETURN(mixer->v_, matrix("attn.v_proj.weight", values, model_dim));
    MNEME_ASSIGN_OR_RETURN(mixer->decay_, TakeLowRank(builder, "attn.w_lora", model_dim,
                                                      config.decay_rank, Activation::kTanh));
    MNEME_ASSIGN_OR_RETURN(mixer->rate_, TakeLowRank(builder, "attn.a_lora", model_dim,
                                                     config.rate_rank, Activation::kIdentity));
    MNEME_ASSIGN_OR_RETURN(mixer->gate_, TakeLowRank(builder, "attn.g_lora", values,
                                                     config.gate_rank, Activation::kSigmoid));
    MNEME_ASSIGN_OR_RETURN(mixer->decay_bias_, TakeLowRankBias(builder, "attn.w_lora", model_dim));
    MNEME_ASSIGN_OR_RETURN(mixer->rate_bias_, TakeLowRankBias(builder, "attn.a_lora", model_dim));
    mixer->decay_bias_.shape = mixer->rate_bias_.shape = keys_of_heads;
    if (!mixer->first_) {
      MNEME_ASSIGN_OR_RETURN(
          mixer->residual_,
          TakeLowRank(builder, "attn.v_lora", values, config.value_rank, Activation::kIdentity));
      MNEME_ASSIGN_OR_RETURN(mixer->residual_bias_,
                             TakeLowRankBias(builder, "attn.v_lora", values));
    }

    const auto floats = [&](const char* name, Shape stored, WeightInit init) {
      return weights.Floats(builder.Weight(name), stored, init);
    };
    MNEME_ASSIGN_OR_RETURN(mixer->k_k_, floats("attn.k_k", {model_dim}, WeightInit::kOnes));
    MNEME_ASSIGN_OR_RETURN(mixer->k_a_, floats("attn.k_a", {model_dim}, WeightInit::kOnes));
    MNEME_ASSIGN_OR_RETURN(mixer->r_k_, floats("attn.r_k", keys_of_heads, WeightInit::kNormal));
    MNEME_ASSIGN_OR_RETURN(
        mixer->norm_,
        TakeNormOfHeads(weights, builder.Weight("attn.g_norm"), config.heads, config.value_dim,
                        static_cast<float>(config.key_dim) * builder.norm_eps));
    mixer->k_k_.shape = mixer->k_a_.shape = keys_of_heads;
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
    const int64_t tokens = hidden.shape[0], values = heads * int64_t{config_.value_dim};
    const TensorView x = ctx.Temp(hidden.shape);
    const TensorView shifted =
        NormedAndShifted(ctx, norm, hidden, x, /*keep=*/false, shift_, products());

    // x is free from here on: the decays go there.
    const TensorView r = ctx.Temp(hidden.shape), k = ctx.Temp(hidden.shape), decay = x;
    const TensorView v = first_ ? ctx.first_values : ctx.Temp({tokens, values});
    const TensorView rate = ctx.Temp(hidden.shape), gate = ctx.Temp({tokens, values});
    const TensorView residual = first_ ? TensorView{} : ctx.Temp({tokens, values});
    Inner inner[] = {
        {&decay_, kW, decay}, {&rate_, kA, rate}, {&gate_, kG, gate}, {&residual_, kV, residual}};
    const std::span<Inner> low_rank(inner, first_ ? 3 : 4);
    std::vector<LinearArgs> in = {{.x = Part(shifted, kR), .weights = {&r_, 1}, .y = r},
                                  {.x = Part(shifted, kK), .weights = {&k_, 1}, .y = k},
                                  {.x = Part(shifted, kV), .weights = {&v_, 1}, .y = v}};
    std::vector<ActivatedProduct> inner_products;
    for (const LinearArgs& product : in) inner_products.push_back({.product = product});
    std::vector<LinearArgs> up;
    for (Inner& map : low_rank) {
      map.inner = ctx.TempForProducts({tokens, map.weights->rank()}, {{&map.weights->up, 1}});
      inner_products.push_back({.product = {.x = Part(shifted, map.part),
                                            .weights = {&map.weights->down, 1},
                                            .y = map.inner},
                                .activation = map.weights->activation});
      up.push_back({.x = map.inner, .weights = {&map.weights->up, 1}, .y = map.y});
    }
    RecurrentSteps* const fused = RecurrentStepsOf(kernels);
    if (fused == nullptr || !fused->ActivatedProducts(inner_products)) {
      const Workspace::Scope scope_of_sums(ctx.workspace);
      std::vector<ActivateArgs> activations;
      for (Inner& map : low_rank) {
        const bool plain = map.weights->activation == Activation::kIdentity &&
                           map.inner.dtype == ctx.backend.activation_dtype();
        const TensorView sum = plain ? map.inner : ctx.Temp(map.inner.shape);
        in.push_back({.x = Part(shifted, map.part), .weights = {&map.weights->down, 1}, .y = sum});
        if (!plain) {
          activations.push_back({.x = sum, .activation = map.weights->activation, .y = map.inner});
        }
      }
      kernels.Linear(in);
      kernels.Activate(activations);
    }

    const TensorView erased = ByHead(ctx.Temp(hidden.shape), heads);
    const TensorView read = ctx.Temp({tokens, heads, config_.value_dim});
    const TensorView y = ctx.TempForProducts({tokens, values}, {{&out_, 1}});
    Rwkv7StepArgs step = {.gates = {.decay = ByHead(decay, heads),
                                    .rate = ByHead(rate, heads),
                                    .decay_bias = decay_bias_,
                                    .rate_bias = rate_bias_,
                                    .k_k = k_k_,
                                    .k_a = k_a_,
                                    .eps = config_.key_norm_eps,
                                    .least = config_.key_norm_least,
                                    .k = ByHead(k, heads),
                                    .log_decay = ByHead(decay, heads),
                                    .c = erased,
                                    .e = ByHead(rate, heads)},
                          .memory = {.rule = kRule,
                                     .q = ByHead(r, heads),
                                     .k = ByHead(k, heads),
                                     .v = ByHead(v, heads),
                                     .log_decay = ByHead(decay, heads),
                                     .c = erased,
                                     .e = ByHead(rate, heads),
                                     .segments = ctx.row_index.segments,
                                     .state = ctx.State(memory_),
                                     .out = read},
                          .output = {.x = read,
                                     .weight = norm_.weight,
                                     .bias = norm_.bias,
                                     .eps = norm_.eps,
                                     .r = ByHead(r, heads),
                                     .k = ByHead(k, heads),
                                     .r_k = r_k_,
                                     .v = ByHead(v, heads),
                                     .gate = ByHead(gate, heads),
                                     .y = ByHead(y, heads)}};
    if (!first_) {
      step.residual = {.first = ctx.first_values, .gate = residual, .bias = residual_bias_, .v = v};
    }
    if (fused == nullptr || step.memory.segments.longest != 1 ||
        !fused->Rwkv7LayerStep({.low_rank = up, .step = step})) {
      kernels.Linear(up);
      kernels.Rwkv7Gates(step.gates);
      if (!first_) kernels.ValueResidual(step.residual);
      kernels.MatrixMemory(step.memory);
      kernels.Rwkv7Output(step.output);
    }
    const LinearArgs out[] = {{.x = y, .weights = {&out_, 1}, .y = hidden, .accumulate = true}};
    kernels.Linear(out);
  }

 private:
  static constexpr MatrixRule kRule = {.decay = MatrixRule::Decay::kKey,
                                       .correction = MatrixRule::Correction::kGeneral};
  enum { kR, kW, kK, kV, kA, kG };

  // A map of low rank of one mix, and where its result goes.
  struct Inner {
    const LowRank* weights;
    int part;
    TensorView y;
    TensorView inner = {};  // of its rank
  };

  // The mixes of r, w, k, v, a and g, [6, model_dim]: one tensor each, or, in old files, one for
  // all.
  static absl::StatusOr<TensorView> TakeMixes(const LayerBuilder& builder) {
    Weights& weights = builder.weights();
    const std::string names[] = {builder.Weight("attn.x_r"), builder.Weight("attn.x_w"),
                                 builder.Weight("attn.x_k"), builder.Weight("attn.x_v"),
                                 builder.Weight("attn.x_a"), builder.Weight("attn.x_g")};
    const std::string all = builder.Weight("attn.x_x");
    if (!weights.Has(names[0]) && weights.Has(all)) {
      return weights.Floats(all, {6, builder.model_dim}, WeightInit::kNormal);
    }
    return weights.FloatGroup(names, {1, 1, builder.model_dim}, WeightInit::kNormal);
  }

  // The matrices by which mixes are multiplied.
  std::vector<std::span<const PackedMatrix>> products() const {
    std::vector<std::span<const PackedMatrix>> products = {
        {&r_, 1}, {&k_, 1}, {&v_, 1}, {&decay_.down, 1}, {&rate_.down, 1}, {&gate_.down, 1}};
    if (!first_) products.push_back({&residual_.down, 1});
    return products;
  }

  Rwkv7Config config_;
  bool first_ = false;  // the first layer
  TokenShift shift_;    // of r, w, k, v, a, g
  PackedMatrix r_, k_, v_, out_;
  LowRank decay_, rate_, gate_, residual_;
  TensorView decay_bias_, rate_bias_;  // [heads, key_dim] f32
  TensorView residual_bias_;           // [heads * value_dim] f32
  TensorView k_k_, k_a_, r_k_;         // [heads, key_dim] f32
  Norm norm_;                          // of the memory's output, by head
  StateField memory_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeRwkv7(const LayerBuilder& builder,
                                                         const Rwkv7Config& config) {
  return Rwkv7::Make(builder, config);
}

}  // namespace mneme
