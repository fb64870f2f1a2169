#include "models/networks/titans_pytorch_layer.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "base/status_macros.h"

namespace mneme {
namespace {

// The feed-forward's width is two thirds of a round number, which no vector load divides. Hidden
// units of zeros fill it up: what they are is multiplied by zeros.
constexpr int kHiddenPiece = 64;

// The `mlp_dim` units from `first` on of the 2 `mlp_dim` of the way in.
absl::StatusOr<Projection> TakeHiddenUnits(const LayerBuilder& builder, int first, int mlp_dim) {
  Weights& weights = builder.weights();
  const int width = (mlp_dim + kHiddenPiece - 1) / kHiddenPiece * kHiddenPiece;
  std::vector<int> rows(static_cast<size_t>(width), -1);
  std::iota(rows.begin(), rows.begin() + mlp_dim, first);
  Projection units;
  MNEME_ASSIGN_OR_RETURN(
      const PackedMatrix matrix,
      weights.MatrixOfRows(builder.Weight("6.1.weight"), 2 * mlp_dim, builder.model_dim, rows));
  units.weights = {matrix};
  MNEME_ASSIGN_OR_RETURN(
      const std::vector<float> stored,
      weights.Values(builder.Weight("6.1.bias"), {2 * mlp_dim}, WeightInit::kZeros));
  std::vector<float> bias(static_cast<size_t>(width));
  std::copy_n(stored.begin() + first, mlp_dim, bias.begin());
  MNEME_ASSIGN_OR_RETURN(units.bias, weights.Constant(bias));
  units.bias.shape = {1, width};
  return units;
}

}  // namespace

absl::StatusOr<TitansPytorchLayer> TitansPytorchLayer::Make(const LayerBuilder& builder,
                                                            const TitansPytorchParts& parts) {
  Weights& weights = builder.weights();
  const int model_dim = builder.model_dim, layer = builder.layer;
  const auto memories = parts.has_memory.begin();
  TitansPytorchLayer made;
  made.layer_ = layer;
  made.gates_attention_ = parts.gates_attention;
  if (parts.has_memory[static_cast<size_t>(layer)]) {
    MNEME_ASSIGN_OR_RETURN(
        made.memory_branch_,
        StreamBranch::Take(builder, "0.", parts.streams, /*writes=*/!parts.gates_attention));
    if (parts.views && layer > 0) {
      MNEME_ASSIGN_OR_RETURN(made.view_norm_, TakeNorm(weights, builder.prefix, {"3.0.weight"},
                                                       model_dim, builder.norm_eps));
      MNEME_ASSIGN_OR_RETURN(made.views_,
                             TakeProjection(builder, "3.1", static_cast<int>(3 * made.Earlier()),
                                            model_dim, Bias::kAdded));
    }
    TitansPytorchMemoryConfig memory = parts.memory;
    made.has_residual_ =
        parts.weight_residual && std::find(memories, memories + layer, true) != memories + layer;
    memory.has_residual = made.has_residual_;
    memory.memory.keeps_before =
        parts.weight_residual &&
        std::find(memories + layer + 1, parts.has_memory.end(), true) != parts.has_memory.end();
    MNEME_ASSIGN_OR_RETURN(made.memory_, TitansPytorchMemory::Make(builder, memory));
  }
  MNEME_ASSIGN_OR_RETURN(made.attention_branch_,
                         StreamBranch::Take(builder, "1.", parts.streams, /*writes=*/true));
  MNEME_ASSIGN_OR_RETURN(made.attention_, PersistentAttention::Make(builder, parts.attention));
  MNEME_ASSIGN_OR_RETURN(made.feed_forward_branch_,
                         StreamBranch::Take(builder, "2.", parts.streams, /*writes=*/true));
  MNEME_ASSIGN_OR_RETURN(made.feed_forward_norm_, TakeNorm(weights, builder.prefix, {"6.0.weight"},
                                                           model_dim, builder.norm_eps));
  MNEME_ASSIGN_OR_RETURN(made.up_, TakeHiddenUnits(builder, 0, parts.mlp_dim));
  MNEME_ASSIGN_OR_RETURN(made.gate_, TakeHiddenUnits(builder, parts.mlp_dim, parts.mlp_dim));
  MNEME_ASSIGN_OR_RETURN(const PackedMatrix down,
                         weights.MatrixColumns(builder.Weight("6.3.weight"), model_dim,
                                               parts.mlp_dim, 0, made.up_.out()));
  made.down_.weights = {down};
  MNEME_ASSIGN_OR_RETURN(
      made.down_.bias, weights.Floats(builder.Weight("6.3.bias"), {model_dim}, WeightInit::kZeros));
  made.down_.bias.shape = {1, model_dim};
  return made;
}

TensorView TitansPytorchLayer::Piece(const TitansPytorchStream& stream, int64_t index) {
  const TensorView& all = stream.history;
  const Shape piece{stream.streams.shape[0], stream.streams.shape[2]};
  if (all.shape.rank == 0 || index >= all.shape[0]) return {};
  return {all.as<std::byte>() + index * piece.elements() * SizeOf(all.dtype), all.dtype, piece};
}

MemoryViews TitansPytorchLayer::Views(ForwardContext& ctx, const TitansPytorchStream& stream,
                                      const TensorView& input) const {
  if (!views_.exists()) return {input, input, input};
  constexpr int kViews = 3;
  Kernels& kernels = ctx.kernels();
  const int64_t tokens = input.shape[0], dim = input.shape[1];
  const TensorView mixed = ctx.Temp({kViews, tokens, dim});
  {
    const Workspace::Scope scope(ctx.workspace);
    const TensorView normed = ctx.Temp(input.shape);
    TensorView logits = ctx.Temp({tokens, kViews * Earlier()});
    ApplyNorm(kernels, view_norm_, input, normed);
    Project(kernels, {{.projection = views_, .x = normed, .y = logits}});
    logits.shape = {tokens, kViews, Earlier()};
    kernels.Softmax({.x = logits, .y = logits});
    TensorView pieces = stream.history;
    pieces.shape.dims[0] = Earlier();
    kernels.MixViews({.x = pieces, .weights = logits, .y = mixed});
  }
  const auto view = [&](int index) {
    return TensorView{mixed.as<std::byte>() + index * tokens * dim * SizeOf(mixed.dtype),
                      mixed.dtype,
                      {tokens, dim}};
  };
  return {view(0), view(1), view(2)};
}

void TitansPytorchLayer::RunMemory(ForwardContext& ctx, TitansPytorchStream& stream,
                                   const TensorView& output) const {
  const MemoryCopy residual = has_residual_ ? stream.before : MemoryCopy{};
  BranchWants wants = {.input = Piece(stream, 0)};
  if (!views_.exists() && memory_->norms_input()) {
    memory_->Want(ctx, wants);
    const BranchInput input =
        memory_branch_.Enter(ctx, stream.last, stream.streams, stream.post, wants);
    memory_->Feed(ctx, input, residual, output);
  } else {
    if (wants.input.empty()) wants.input = ctx.Temp(output.shape);
    memory_branch_.Enter(ctx, stream.last, stream.streams, stream.post, wants);
    memory_->Feed(ctx, Views(ctx, stream, wants.input), residual, output);
  }
  stream.before = memory_->Before(ctx);
}

void TitansPytorchLayer::RunAttention(ForwardContext& ctx, TitansPytorchStream& stream,
                                      const TensorView& gate) const {
  BranchWants wants = {.input = Piece(stream, Earlier())};
  TensorView output = Piece(stream, Earlier() + 1);
  if (output.empty()) output = stream.output;
  attention_.Want(wants);
  const BranchInput input =
      attention_branch_.Enter(ctx, stream.last, stream.streams, stream.post, wants);
  attention_.Attend(ctx, input.normed[0], output);
  if (!gate.empty()) ctx.kernels().Multiply({.a = output, .b = gate, .y = output});
  stream.last = {output, stream.post};
}

void TitansPytorchLayer::RunFeedForward(ForwardContext& ctx, TitansPytorchStream& stream) const {
  Kernels& kernels = ctx.kernels();
  TensorView output = Piece(stream, Earlier() + 3);
  if (output.empty()) output = stream.output;
  const BranchWants wants = {
      .input = Piece(stream, Earlier() + 2),
      .normed = {{.norm = &feed_forward_norm_, .products = {up_.weights, gate_.weights}}}};
  const TensorView x =
      feed_forward_branch_.Enter(ctx, stream.last, stream.streams, stream.post, wants).normed[0];
  const Shape inner{x.shape[0], up_.out()};
  const TensorView hidden = ctx.TempForProducts(inner, {down_.weights});
  if (!kernels.SwiGluProduct({.x = x,
                              .gate = gate_.matrix(),
                              .up = up_.matrix(),
                              .y = hidden,
                              .gate_bias = gate_.bias,
                              .up_bias = up_.bias})) {
    const TensorView up = ctx.Temp(inner), gate = ctx.Temp(inner);
    Project(kernels,
            {{.projection = up_, .x = x, .y = up}, {.projection = gate_, .x = x, .y = gate}});
    kernels.SwiGlu({.gate = gate, .up = up, .y = hidden});
  }
  Project(kernels, {{.projection = down_, .x = hidden, .y = output}});
  stream.last = {output, stream.post};
}

void TitansPytorchLayer::Forward(ForwardContext& ctx, TitansPytorchStream& stream) const {
  TensorView attention_gate;
  const Workspace::Scope of_gate(ctx.workspace);
  if (memory_.has_value()) {
    if (gates_attention_) attention_gate = ctx.Temp(stream.output.shape);
    const Workspace::Scope scope(ctx.workspace);
    const TensorView& read = gates_attention_ ? attention_gate : stream.output;
    RunMemory(ctx, stream, read);
    stream.last = {};
    if (gates_attention_) {
      const ActivateArgs sigmoid[] = {{.x = read, .activation = Activation::kSigmoid, .y = read}};
      ctx.kernels().Activate(sigmoid);
    } else {
      stream.last = {read, stream.post};
    }
  }
  {
    const Workspace::Scope scope(ctx.workspace);
    RunAttention(ctx, stream, attention_gate);
  }
  const Workspace::Scope scope(ctx.workspace);
  RunFeedForward(ctx, stream);
}

}  // namespace mneme
