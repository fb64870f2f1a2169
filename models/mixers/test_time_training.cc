// One token x, the j-th of its mini-batch; at first  hidden += conv(Norm(hidden; conv.norm))  with
// pre_conv:
//   q, k = rope_j(Wq x), rope_j(Wk x);   with share_qk  rope_j(conv_q(Wq x)), rope_j(conv_k(Wq x))
//   v    = Wv x;   rate = base_rate / head_dim sigmoid(w . x + c)
//   scale_j = max(0, 1 / (j + 1) + learnable_token_idx_j)
//   o    = NeuralMemory(q, k, v, rate) under mini-batches: read ahead, M(x) = x + LayerNorm(net(x))
//   out  = Wo( gelu(Wg x) * LayerNorm(o; post_norm) ),   without the gate's factor unless `gate`
#include "models/mixers/test_time_training.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/mixers/memory_fields.h"
#include "models/mixers/rope_frequencies.h"
#include "models/mixers/trained_memory.h"
#include "models/projection.h"
#include "models/step_products.h"

namespace mneme {
namespace {

constexpr float kInnerEps = 1e-6f;  // of the norms inside the layer, whatever the model's is
constexpr const char* kBlock = "seq_modeling_block.";

// A convolution of all channels, with a bias and no activation.
struct PlainConvolution {
  TensorView weight, bias;  // [channels, width], [channels] f32
  StateField window;
};

class TestTimeTraining final : public SequenceMixer {
 public:
  static absl::StatusOr<std::unique_ptr<SequenceMixer>> Make(const LayerBuilder& builder,
                                                             const TestTimeTrainingConfig& config) {
    const int model_dim = builder.model_dim, heads = config.heads, dim = model_dim / heads;
    Weights& weights = builder.weights();
    const auto name = [&](const char* tensor) { return absl::StrCat(kBlock, tensor); };
    const auto floats = [&](const char* tensor, Shape stored, WeightInit init) {
      return weights.Floats(builder.Weight(name(tensor)), stored, init);
    };
    const auto projection = [&](const char* tensor) {
      return TakeProjection(builder, name(tensor), model_dim, model_dim);
    };
    auto mixer = std::make_unique<TestTimeTraining>();
    mixer->config_ = config;
    MNEME_ASSIGN_OR_RETURN(mixer->q_proj_, projection("q_proj"));
    MNEME_ASSIGN_OR_RETURN(mixer->v_proj_, projection("v_proj"));
    const MemoryFields fields(builder, /*routing=*/{});
    const auto convolution = [&](const std::string& tensor, const char* window,
                                 const Projection& input) -> absl::StatusOr<PlainConvolution> {
      PlainConvolution taken;
      MNEME_ASSIGN_OR_RETURN(
          taken.weight,
          weights.Floats(builder.Weight(absl::StrCat(tensor, ".weight")),
                         {model_dim, 1, config.conv_width}, WeightInit::kConvolution));
      taken.weight.shape = {model_dim, config.conv_width};
      MNEME_ASSIGN_OR_RETURN(
          taken.bias, weights.Floats(builder.Weight(absl::StrCat(tensor, ".bias")), {model_dim},
                                     WeightInit::kZeros));
      taken.window = fields.AddWindow(window, config.conv_width - 1, input);
      return taken;
    };
    if (config.pre_conv) {
      MNEME_ASSIGN_OR_RETURN(
          mixer->pre_conv_norm_,
          TakeNorm(weights, builder.prefix, {"conv.norm.weight"}, model_dim, builder.norm_eps));
      // Normed values are not rounded.
      const Projection exact{.weights = {{.out_features = model_dim}}};
      MNEME_ASSIGN_OR_RETURN(mixer->pre_conv_, convolution("conv.conv", "pre_conv", exact));
      MNEME_ASSIGN_OR_RETURN(
          mixer->ones_, weights.Constant(std::vector<float>(static_cast<size_t>(model_dim), 1.0f)));
    }
    if (config.share_qk) {
      MNEME_ASSIGN_OR_RETURN(mixer->conv_q_, convolution(name("conv_q"), "conv_q", mixer->q_proj_));
      MNEME_ASSIGN_OR_RETURN(mixer->conv_k_, convolution(name("conv_k"), "conv_k", mixer->q_proj_));
    } else {
      MNEME_ASSIGN_OR_RETURN(mixer->k_proj_, projection("k_proj"));
    }
    MNEME_ASSIGN_OR_RETURN(
        const PackedMatrix rate,
        weights.MatrixAs(builder.Weight(name("learnable_ttt_lr_weight")), {heads, 1, model_dim}));
    mixer->rate_.weights = {rate};
    MNEME_ASSIGN_OR_RETURN(mixer->rate_.bias,
                           floats("learnable_ttt_lr_bias", {heads, 1}, WeightInit::kZeros));
    mixer->rate_.bias.shape = {1, heads};
    MNEME_ASSIGN_OR_RETURN(std::vector<float> scale,
                           weights.Values(builder.Weight(name("learnable_token_idx")),
                                          {config.mini_batch}, WeightInit::kZeros));
    for (size_t j = 0; j < scale.size(); ++j) {
      scale[j] = std::max(0.0f, 1.0f / static_cast<float>(j + 1) + scale[j]);
    }
    MNEME_ASSIGN_OR_RETURN(mixer->step_scale_, weights.Constant(scale));
    MNEME_ASSIGN_OR_RETURN(mixer->gain_,
                           floats("ttt_norm_weight", {heads, dim}, WeightInit::kOnes));
    MNEME_ASSIGN_OR_RETURN(mixer->shift_,
                           floats("ttt_norm_bias", {heads, dim}, WeightInit::kZeros));
    MNEME_ASSIGN_OR_RETURN(mixer->memory_, TakeMemory(builder, config, dim));
    MNEME_ASSIGN_OR_RETURN(mixer->frequencies_,
                           TakeExactFrequencies(weights, config.rope_theta, dim));
    MNEME_ASSIGN_OR_RETURN(mixer->post_norm_, TakeNorm(weights, builder.prefix,
                                                       {.weight = name("post_norm.weight"),
                                                        .eps = kInnerEps,
                                                        .kind = NormKind::kLayer,
                                                        .bias = name("post_norm.bias")},
                                                       model_dim, kInnerEps));
    if (config.gate) {
      MNEME_ASSIGN_OR_RETURN(mixer->gate_, projection("g_proj"));
    }
    MNEME_ASSIGN_OR_RETURN(mixer->o_proj_, projection("o_proj"));
    return mixer;
  }

  bool uses_row_index() const override { return true; }
  void Settle(ForwardContext& ctx, const TensorView& slots) const override {
    memory_.Settle(ctx, slots);
  }

  void Forward(ForwardContext& ctx, const Norm& norm, TensorView hidden) const override {
    const Workspace::Scope scope(ctx.workspace);
    if (config_.pre_conv) Convolve(ctx, hidden);
    std::vector<std::span<const PackedMatrix>> products;
    for (const Projection* projection : {&q_proj_, &k_proj_, &v_proj_, &rate_, &gate_}) {
      if (projection->exists()) products.push_back(projection->weights);
    }
    const TensorView x = ctx.TempForProducts(hidden.shape, products);
    const int heads = config_.heads;
    const TensorView q = ctx.Temp(hidden.shape), k = ctx.Temp(hidden.shape);
    const TensorView v = ctx.Temp(hidden.shape), rate = ctx.Temp({hidden.shape[0], heads});
    const TensorView gate = config_.gate ? ctx.Temp(hidden.shape) : TensorView{};
    std::vector<ProjectionArgs> projections = {{.projection = v_proj_, .x = x, .y = v},
                                               {.projection = rate_, .x = x, .y = rate}};
    if (config_.gate) projections.push_back({.projection = gate_, .x = x, .y = gate});
    MemoryStreams streams;
    int q_stream, k_stream;
    if (config_.share_qk) {
      const TensorView shared = ctx.TempOfProducts(x, q_proj_.weights, hidden.shape);
      projections.push_back({.projection = q_proj_, .x = x, .y = shared});
      q_stream = streams.Add(q, {.convolution = Args(ctx, conv_q_, shared, q)});
      k_stream = streams.Add(k, {.convolution = Args(ctx, conv_k_, shared, k)});
    } else {
      projections.push_back({.projection = q_proj_, .x = x, .y = q});
      projections.push_back({.projection = k_proj_, .x = x, .y = k});
      q_stream = streams.Add(q);
      k_stream = streams.Add(k);
    }
    ProjectNormed(ctx, {&norm, hidden}, x, projections);
    const RopeArgs rope = {.positions = ctx.row_index.token_positions,
                           .frequencies = frequencies_,
                           .period = config_.mini_batch,
                           .interleaved = true};
    streams.Add(rate, {.activation =
                           ActivateArgs{.x = rate, .activation = Activation::kSigmoid, .y = rate}});
    NeuralMemoryArgs args = memory_.Args(ctx, ctx.row_index);
    args.q = streams.Rope(q_stream, heads, rope);
    args.k = streams.Rope(k_stream, heads, rope);
    args.v = ByHead(v, heads);
    args.rate = rate;
    args.step_scale = step_scale_;
    args.gain = gain_;
    args.shift = shift_;
    args.out = ctx.Temp(args.q.shape);
    const SurpriseArgs surprise = memory_.Run(ctx, streams, args);
    Emit(ctx, gate, Flat(args.out), surprise, hidden);
  }

 private:
  static absl::StatusOr<TrainedMemory> TakeMemory(const LayerBuilder& builder,
                                                  const TestTimeTrainingConfig& config, int dim) {
    const int heads = config.heads, hidden = config.mlp ? 4 * dim : 0;
    std::vector<MemoryTensorName> tensors;
    const auto add = [&](const char* tensor, int in, int out) {
      tensors.push_back(
          {.weight = absl::StrCat(kBlock, tensor), .stored = {heads, in, out}, .field = tensor});
    };
    add("W1", dim, config.mlp ? hidden : dim);
    if (config.mlp) add("W2", hidden, dim);
    add("b1", 1, config.mlp ? hidden : dim);
    if (config.mlp) add("b2", 1, dim);
    return TrainedMemory::Take(builder,
                               {.heads = heads,
                                .dim = dim,
                                .network = {.depth = config.mlp ? 2 : 1,
                                            .hidden = hidden,
                                            .biases = true,
                                            .activation = MemoryNetwork::Activation::kGeluTanh,
                                            .norm = MemoryNetwork::Norm::kLayer,
                                            .eps = kInnerEps},
                                .step = config.mini_batch,
                                .anchor_period = config.mini_batch,
                                .read = config.mini_batch > 1 ? NeuralMemoryArgs::Read::kAhead
                                                              : NeuralMemoryArgs::Read::kRunning,
                                .rate_scale = config.base_rate / dim,
                                .orders = 0,
                                .may_hold_back = true},
                               tensors);
  }

  ShortConvArgs Args(ForwardContext& ctx, const PlainConvolution& convolution, const TensorView& x,
                     const TensorView& y) const {
    return {.x = x,
            .weight = convolution.weight,
            .bias = convolution.bias,
            .activation = Activation::kIdentity,
            .segments = ctx.row_index.segments,
            .window = ctx.State(convolution.window),
            .y = y};
  }

  // hidden += conv(Norm(hidden))
  void Convolve(ForwardContext& ctx, const TensorView& hidden) const {
    const Workspace::Scope scope(ctx.workspace);
    const TensorView normed = ctx.Temp(hidden.shape), convolved = ctx.Temp(hidden.shape);
    const ShortConvArgs args[] = {Args(ctx, pre_conv_, normed, convolved)};
    LayerNormSteps* const steps =
        ctx.batch.longest_row == 1 && pre_conv_norm_.kind == NormKind::kRms
            ? LayerNormStepsOf(ctx.kernels())
            : nullptr;
    if (steps != nullptr && steps->NormedConvolutionStep({.norm = AsStep(pre_conv_norm_),
                                                          .hidden = hidden,
                                                          .convolution = args[0],
                                                          .settled = true})) {
      return;
    }
    ApplyNorm(ctx.kernels(), pre_conv_norm_, hidden, normed);
    ctx.kernels().ShortConv(args);
    ctx.kernels().AddScaled({.x = convolved, .scale = ones_, .y = hidden});
  }

  // hidden += Wo( gelu(gate) * Norm(o) ), or Wo Norm(o)
  void Emit(ForwardContext& ctx, const TensorView& gate, const TensorView& o,
            const SurpriseArgs& surprise, const TensorView& hidden) const {
    Kernels& kernels = ctx.kernels();
    TensorView y = ctx.TempForProducts(o.shape, {o_proj_.weights});
    const ActivateArgs gelu[] = {{.x = gate, .activation = Activation::kGeluTanh, .y = gate}};
    if (gate.empty() ||
        !kernels.NeuralMemoryOutput({.surprise = surprise,
                                     .gate = gelu[0],
                                     .product = {.a = gate, .b = o, .y = y},
                                     .norm = LayerNormArgs{.x = o,
                                                           .weight = post_norm_.weight,
                                                           .bias = post_norm_.bias,
                                                           .eps = post_norm_.eps,
                                                           .y = o}})) {
      if (!surprise.surprise.empty()) kernels.Surprise(surprise);
      if (!gate.empty()) y = o;
      ApplyNorm(kernels, post_norm_, o, y);
      if (!gate.empty()) {
        kernels.Activate(gelu);
        kernels.Multiply({.a = gate, .b = y, .y = y});
      }
    }
    memory_.TellProduct(ctx, "read", y, o_proj_.weights);
    const LinearArgs out[] = {
        {.x = y, .weights = o_proj_.weights, .y = hidden, .accumulate = true}};
    kernels.Linear(out);
  }

  TestTimeTrainingConfig config_;
  Projection q_proj_, k_proj_, v_proj_, rate_, gate_, o_proj_;
  PlainConvolution pre_conv_, conv_q_, conv_k_;
  Norm pre_conv_norm_, post_norm_;
  TensorView step_scale_;    // [mini_batch] f32
  TensorView gain_, shift_;  // [heads, head_dim] f32
  TensorView frequencies_;
  TensorView ones_;  // [model_dim] f32
  TrainedMemory memory_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeTestTimeTraining(
    const LayerBuilder& builder, const TestTimeTrainingConfig& config) {
  return TestTimeTraining::Make(builder, config);
}

}  // namespace mneme
