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

TensorView TitansPytorchLayer::Piece(ForwardContext& ctx, const TitansPytorchStream& stream,
                                     int64_t index) {
  const TensorView& all = stream.history;
  const Shape piece{stream.streams.shape[0], stream.streams.shape[2]};
  if (all.shape.rank == 0 || index >= all.shape[0]) return ctx.Temp(piece);
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

void TitansPytorchLayer::FeedForward(ForwardContext& ctx, const TensorView& x,
                                     const TensorView& y) const {
  const Workspace::Scope scope(ctx.workspace);
  Kernels& kernels = ctx.kernels();
  const TensorView normed = ctx.Temp(x.shape);
  const TensorView up = ctx.Temp({x.shape[0], up_.out()}), gate = ctx.Temp(up.shape);
  ApplyNorm(kernels, feed_forward_norm_, x, normed);
  Project(kernels, {{.projection = up_, .x = normed, .y = up},
                    {.projection = gate_, .x = normed, .y = gate}});
  kernels.SwiGlu({.gate = gate, .up = up, .y = up});
  Project(kernels, {{.projection = down_, .x = up, .y = y}});
}

void TitansPytorchLayer::Forward(ForwardContext& ctx, TitansPytorchStream& stream) const {
  const Workspace::Scope scope(ctx.workspace);
  Kernels& kernels = ctx.kernels();
  const TensorView& streams = stream.streams;
  const Shape shape{streams.shape[0], streams.shape[2]};
  TensorView attention_gate;
  if (memory_.has_value()) {
    const TensorView input = Piece(ctx, stream, 0);
    const TensorView post = memory_branch_.Read(ctx, streams, input);
    const TensorView read = ctx.Temp(shape);
    memory_->Feed(ctx, Views(ctx, stream, input), has_residual_ ? stream.before : MemoryCopy{},
                  read);
    stream.before = memory_->Before(ctx);
    if (gates_attention_) {
      const ActivateArgs sigmoid[] = {{.x = read, .activation = Activation::kSigmoid, .y = read}};
      kernels.Activate(sigmoid);
      attention_gate = read;
    } else {
      memory_branch_.Write(ctx, post, read, streams);
    }
  }
  {
    const TensorView input = Piece(ctx, stream, Earlier());
    const TensorView output = Piece(ctx, stream, Earlier() + 1);
    const TensorView post = attention_branch_.Read(ctx, streams, input);
    attention_.Attend(ctx, input, output);
    if (attention_gate.shape.rank > 0) {
      kernels.Multiply({.a = output, .b = attention_gate, .y = output});
    }
    attention_branch_.Write(ctx, post, output, streams);
  }
  const TensorView input = Piece(ctx, stream, Earlier() + 2);
  const TensorView output = Piece(ctx, stream, Earlier() + 3);
  const TensorView post = feed_forward_branch_.Read(ctx, streams, input);
  FeedForward(ctx, input, output);
  feed_forward_branch_.Write(ctx, post, output, streams);
}

}  // namespace mneme
