// Steps are taken in positions: a token in front of which rows are inserted is that many positions
// more (Kernels::ExpandRows). How many a step has at most follows from its tokens and rows, so that
// its shapes are known on the host; StepBatch::inserted may know it more exactly.
//
// With a weight residual a layer's step of its memory needs the memory below as it was before its
// own step with the same tokens. Then positions are cut where a memory's steps end, and each piece
// goes through all layers before the next one (Kernels::CutRows).
#include "models/networks/titans_pytorch_network.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/tensor.h"
#include "models/networks/titans_pytorch_layer.h"
#include "models/step_rounds.h"

namespace mneme {
namespace {

// A network whose input is a number, with an output [model_dim].
struct NumberNetwork {
  TensorView weight, bias;  // [width] f32
  Projection hidden, out;

  static absl::StatusOr<NumberNetwork> Take(const LayerBuilder& builder, int model_dim) {
    const int width = 2 * model_dim;
    NumberNetwork network;
    MNEME_ASSIGN_OR_RETURN(
        network.weight,
        builder.weights().Floats(builder.Weight("0.weight"), {width, 1}, WeightInit::kNormal));
    network.weight.shape = {width};
    MNEME_ASSIGN_OR_RETURN(network.bias, builder.weights().Floats(builder.Weight("0.bias"), {width},
                                                                  WeightInit::kNormal));
    MNEME_ASSIGN_OR_RETURN(network.hidden,
                           TakeProjection(builder, "2", width, width, Bias::kAdded));
    MNEME_ASSIGN_OR_RETURN(network.out,
                           TakeProjection(builder, "4", model_dim, width, Bias::kAdded));
    return network;
  }

  // y += network(floor(position / period));  `first` and `second` are [positions, width] act
  void Add(Kernels& kernels, const TensorView& positions, int64_t period, const TensorView& first,
           const TensorView& second, const TensorView& y) const {
    kernels.PositionLayer(
        {.positions = positions, .period = period, .weight = weight, .bias = bias, .y = first});
    Project(kernels, {{.projection = hidden, .x = first, .y = second}});
    const ActivateArgs silu[] = {{.x = second, .activation = Activation::kSilu, .y = second}};
    kernels.Activate(silu);
    AddProjection(kernels, out, second, y);
  }
};

// The step in positions, and where tokens are in it.
struct WideStep {
  StepBatch batch;
  TensorView sources;  // ExpandRowsArgs, or empty: positions are tokens
  TensorView picks;
  TensorView places;  // of all tokens, where they are watched
};

class TitansPytorchNetwork final : public Network {
 public:
  static absl::StatusOr<std::unique_ptr<Network>> Make(const NetworkBuilder& builder,
                                                       const TitansPytorchParts& parts) {
    Weights& weights = builder.weights;
    const int vocab = parts.info.vocab, model_dim = parts.info.model_dim;
    const auto longterm = static_cast<int>(parts.info.inserted.count);
    const bool f64 = builder.state_format.memory_dtype == DType::kF64;
    const DType act = f64 ? DType::kF64 : DType::kF32;
    auto network = std::make_unique<TitansPytorchNetwork>();
    network->info_ = parts.info;
    network->streams_ = parts.streams.streams;
    network->period_ = parts.memory.memory.step;
    network->cuts_ = parts.weight_residual;
    network->value_channels_ = parts.attention.heads * parts.attention.head_dim;
    MNEME_ASSIGN_OR_RETURN(network->embeddings_,
                           weights.Table("token_emb.weight", vocab, model_dim));
    MNEME_ASSIGN_OR_RETURN(
        network->ones_, weights.Constant(std::vector<float>(static_cast<size_t>(model_dim), 1.0f)));
    if (longterm > 0) {
      MNEME_ASSIGN_OR_RETURN(network->longterm_,
                             weights.Table("longterm_mems", longterm, model_dim));
      MNEME_ASSIGN_OR_RETURN(network->longterm_rows_, weights.Reserve(act, {longterm, model_dim}));
    } else {
      MNEME_RETURN_IF_ERROR(IgnoreEmpty(weights, "longterm_mems", {0, model_dim}));
    }
    for (int i = 0; i < 2; ++i) {
      const LayerBuilder axis{.network = builder,
                              .model_dim = model_dim,
                              .prefix = absl::StrCat("axial_pos_emb.mlps.", i, ".")};
      MNEME_ASSIGN_OR_RETURN(network->axes_[i], NumberNetwork::Take(axis, model_dim));
    }
    MNEME_ASSIGN_OR_RETURN(network->inner_positions_,
                           weights.Reserve(act, {network->period_, model_dim}));
    MNEME_ASSIGN_OR_RETURN(
        network->stream_embeddings_,
        network->streams_ == 1
            ? weights.Constant(std::vector<float>(static_cast<size_t>(model_dim)))
            : weights.Floats("expand_streams.stream_embed", {network->streams_, model_dim},
                             WeightInit::kNormal));
    network->stream_embeddings_.shape = {network->streams_, model_dim};
    for (int i = 0; i < parts.info.layers; ++i) {
      const LayerBuilder layer{.network = builder,
                               .layer = i,
                               .model_dim = model_dim,
                               .norm_eps = parts.norm_eps,
                               .prefix = absl::StrCat("layers.", i, ".")};
      MNEME_ASSIGN_OR_RETURN(TitansPytorchLayer made, TitansPytorchLayer::Make(layer, parts));
      network->layers_.push_back(std::move(made));
      const bool has_views = parts.views && i > 0 && parts.has_memory[static_cast<size_t>(i)];
      if (has_views) network->history_ = 1 + 4 * i;
    }
    MNEME_ASSIGN_OR_RETURN(network->norm_,
                           TakeNorm(weights, "", {"norm.weight"}, model_dim, parts.norm_eps));
    MNEME_ASSIGN_OR_RETURN(network->head_, weights.Matrix("to_logits.weight", vocab, model_dim));
    return network;
  }

  const NetworkInfo& info() const override { return info_; }

  absl::Status Prepare(Backend& backend, const StateLayout&, Workspace&,
                       LayerObserver*) const override {
    for (const TitansPytorchLayer& layer : layers_) {
      MNEME_RETURN_IF_ERROR(layer.Prepare(backend));
    }
    if (longterm_.shape[0] > 0) MNEME_RETURN_IF_ERROR(PrepareLongterm(backend));
    return PrepareInnerPositions(backend);
  }

  absl::Status InitState(Backend&, std::byte*) const override { return absl::OkStatus(); }
  void Settle(ForwardContext&, const TensorView&) const override {}

  void Forward(ForwardContext& step, const TensorView& logit_tokens,
               const TensorView& logits) const override {
    const Workspace::Scope scope(step.workspace);
    Kernels& kernels = step.kernels();
    const WideStep wide = Widen(step, logit_tokens);
    ForwardContext ctx{.backend = step.backend,
                       .workspace = step.workspace,
                       .batch = wide.batch,
                       .slabs = step.slabs,
                       .contexts = step.contexts,
                       .surprise = {.values = step.surprise.values, .outer = wide.places},
                       .observer = step.observer};
    if (ctx.observer != nullptr) ctx.observer->OnStep(wide.batch.tokens);
    ctx.row_index = IndexRows(ctx);
    const TensorView hidden = ctx.Temp({wide.batch.tokens, info_.model_dim});
    Enter(ctx, step.batch, wide, hidden);
    if (cuts_ && wide.batch.longest_row != 1) {
      RunPieces(ctx, hidden);
    } else {
      RunLayers(ctx, hidden, hidden);
    }
    const int64_t rows = logit_tokens.shape[0];
    if (rows == 0) return;
    const TensorView last = ctx.Temp({rows, info_.model_dim});
    kernels.GatherRows({.x = hidden, .indices = wide.picks, .y = last});
    ApplyNorm(kernels, norm_, last, last);
    const LinearArgs products[] = {{.x = last, .weights = {&head_, 1}, .y = logits}};
    kernels.Linear(products);
  }

 private:
  absl::Status PrepareLongterm(Backend& backend) const {
    const int64_t rows = longterm_.shape[0];
    std::vector<int32_t> numbers(static_cast<size_t>(rows));
    std::iota(numbers.begin(), numbers.end(), 0);
    MNEME_ASSIGN_OR_RETURN(const Tensor ids, Tensor::Allocate(backend, DType::kI32, {rows}));
    backend.CopyFromHost(ids.view().data, numbers.data(), ids.view().bytes());
    backend.kernels().Embedding({.ids = ids.view(), .table = longterm_, .y = longterm_rows_});
    return backend.Synchronize();
  }

  // The second network has as many inputs as a period has positions.
  absl::Status PrepareInnerPositions(Backend& backend) const {
    constexpr int64_t kAtOnce = 256;
    const int64_t most = std::min<int64_t>(kAtOnce, period_), width = axes_[1].weight.shape[0];
    const DType act = backend.activation_dtype();
    MNEME_ASSIGN_OR_RETURN(const Tensor positions, Tensor::Allocate(backend, DType::kI64, {most}));
    MNEME_ASSIGN_OR_RETURN(const Tensor first, Tensor::Allocate(backend, act, {most, width}));
    MNEME_ASSIGN_OR_RETURN(const Tensor second, Tensor::Allocate(backend, act, {most, width}));
    backend.Zero(inner_positions_.data, inner_positions_.bytes());
    for (int64_t begin = 0; begin < period_; begin += most) {
      const int64_t count = std::min(most, period_ - begin);
      std::vector<int64_t> numbers(static_cast<size_t>(count));
      std::iota(numbers.begin(), numbers.end(), begin);
      backend.CopyFromHost(positions.view().data, numbers.data(), count * int64_t{sizeof(int64_t)});
      const auto part = [&](TensorView view) {
        view.shape.dims[0] = count;
        return view;
      };
      TensorView rows = part(inner_positions_);
      rows.data = inner_positions_.as<std::byte>() + begin * (rows.bytes() / count);
      axes_[1].Add(backend.kernels(), part(positions.view()), /*period=*/1, part(first.view()),
                   part(second.view()), rows);
      MNEME_RETURN_IF_ERROR(backend.Synchronize());
    }
    return absl::OkStatus();
  }

  // In the caller's workspace scope.
  WideStep Widen(ForwardContext& step, const TensorView& logit_tokens) const {
    const StepBatch& batch = step.batch;
    if (!info_.inserted.exist()) return {.batch = batch, .picks = logit_tokens};
    const int64_t inserted =
        batch.inserted >= 0 ? batch.inserted : info_.inserted.Most(batch.tokens, batch.rows);
    const int rows = batch.rows;
    const int64_t room = batch.tokens + inserted;
    const TensorView offsets = step.TempIndices({rows + 2}), slots = step.TempIndices({rows + 1});
    const TensorView positions = step.workspace.Temp(DType::kI64, {rows + 1});
    WideStep wide = {.sources = step.TempIndices({room}),
                     .picks = step.TempIndices(logit_tokens.shape)};
    if (!step.surprise.values.empty()) wide.places = step.TempIndices({batch.tokens});
    step.kernels().ExpandRows({.row_offsets = batch.row_offsets,
                               .slots = batch.slots,
                               .positions = batch.positions,
                               .tokens = batch.tokens,
                               .inserted = info_.inserted,
                               .picks = logit_tokens,
                               .wide_offsets = offsets,
                               .wide_slots = slots,
                               .wide_positions = positions,
                               .sources = wide.sources,
                               .wide_picks = wide.picks,
                               .places = wide.places});
    // The row of padding is there where something may be left for it.
    const int wide_rows = inserted > 0 ? rows + 1 : rows;
    const auto first = [](TensorView view, int count) {
      view.shape.dims[0] = count;
      return view;
    };
    const int longest = batch.longest_row > 0 ? batch.longest_row : batch.tokens;
    const auto more = inserted > 0 ? static_cast<int>(info_.inserted.MostOfRow(longest)) : 0;
    wide.batch = {.tokens = static_cast<int>(room),
                  .rows = wide_rows,
                  .longest_row = longest + more,
                  .row_offsets = first(offsets, wide_rows + 1),
                  .slots = first(slots, wide_rows),
                  .positions = first(positions, wide_rows)};
    return wide;
  }

  // What the layers are fed.
  void Enter(ForwardContext& ctx, const StepBatch& step, const WideStep& wide,
             const TensorView& hidden) const {
    const Workspace::Scope scope(ctx.workspace);
    Kernels& kernels = ctx.kernels();
    if (wide.sources.shape.rank == 0) {
      kernels.Embedding({.ids = step.token_ids, .table = embeddings_, .y = hidden});
    } else {
      // The rows of all tokens, and behind them those that are inserted.
      const int64_t longterm = longterm_rows_.shape[0];
      const TensorView all = ctx.Temp({step.tokens + longterm, info_.model_dim});
      TensorView tokens = all;
      tokens.shape.dims[0] = step.tokens;
      kernels.Embedding({.ids = step.token_ids, .table = embeddings_, .y = tokens});
      ctx.backend.Copy(tokens.as<std::byte>() + tokens.bytes(), longterm_rows_.data,
                       longterm_rows_.bytes());
      kernels.GatherRows({.x = all, .indices = wide.sources, .y = hidden});
    }
    const TensorView& positions = ctx.row_index.token_positions;
    kernels.AddPositions(
        {.positions = positions, .period = period_, .table = inner_positions_, .y = hidden});
    const int64_t count = hidden.shape[0], width = axes_[0].weight.shape[0];
    axes_[0].Add(kernels, positions, period_, ctx.Temp({count, width}), ctx.Temp({count, width}),
                 hidden);
  }

  // y = sum of the streams behind the last layer; may be x.
  void RunLayers(ForwardContext& ctx, const TensorView& x, const TensorView& y) const {
    const Workspace::Scope scope(ctx.workspace);
    const int64_t tokens = x.shape[0];
    TitansPytorchStream stream{.streams = ctx.Temp({tokens, streams_, info_.model_dim})};
    if (history_ > 0) stream.history = ctx.Temp({history_, tokens, info_.model_dim});
    ctx.first_values = ctx.Temp({tokens, value_channels_});
    ctx.kernels().ExpandStreams({.x = x, .embedding = stream_embeddings_, .y = stream.streams});
    stream.output = ctx.Temp(x.shape);
    stream.post = ctx.Temp({tokens, streams_});
    for (const TitansPytorchLayer& layer : layers_) layer.Forward(ctx, stream);
    FinishStreams(ctx, stream.last, stream.streams, ones_);
    ctx.kernels().SumStreams({.x = stream.streams, .y = y});
  }

  // Takes the step piece by piece: those of each row's next step of the memories.
  void RunPieces(ForwardContext& ctx, const TensorView& hidden) const {
    const Workspace::Scope scope(ctx.workspace);
    Kernels& kernels = ctx.kernels();
    const int tokens = ctx.batch.tokens;
    const int longest = ctx.batch.longest_row > 0 ? ctx.batch.longest_row : tokens;
    const auto period = static_cast<int>(period_);
    // A row may begin in the last position of a memory's step.
    const StepRounds rounds(ctx, longest, period);
    const int room = rounds.room();
    // Positions of other rounds find the row behind the round's own, which stands for no change.
    const TensorView done = ctx.Temp(hidden.shape), found = ctx.Temp(hidden.shape);
    const TensorView answers = ctx.Temp({room + 1, info_.model_dim});
    TensorView answer = answers;
    answer.shape.dims[0] = room;
    ctx.backend.Zero(answers.as<std::byte>() + answer.bytes(), answers.bytes() - answer.bytes());
    ctx.backend.Zero(done.data, done.bytes());
    const TensorView& places = rounds.places();
    for (int round = 0; round < rounds.count(); ++round) {
      const Workspace::Scope of_round(ctx.workspace);
      const auto [part, part_tokens] = rounds.Cut(round);
      ForwardContext inner{.backend = ctx.backend,
                           .workspace = ctx.workspace,
                           .batch = part,
                           .slabs = ctx.slabs,
                           .contexts = ctx.contexts,
                           .surprise = {.values = ctx.surprise.values,
                                        .places = places,
                                        .outer = ctx.surprise.outer},
                           .observer = ctx.observer,
                           .observed_places = places};
      inner.row_index = IndexRows(inner);
      const TensorView x = ctx.Temp({room, info_.model_dim});
      kernels.GatherRows({.x = hidden, .indices = part_tokens, .y = x});
      RunLayers(inner, x, answer);
      kernels.GatherRows({.x = answers, .indices = places, .y = found});
      kernels.AddScaled({.x = found, .scale = ones_, .y = done});
    }
    ctx.backend.Copy(hidden.data, done.data, done.bytes());
  }

  NetworkInfo info_;
  int streams_ = 1;
  int64_t period_ = 1;            // of the inner positions, and of the memories' steps
  bool cuts_ = false;             // steps where a memory's end
  int value_channels_ = 0;        // of ForwardContext::first_values
  int history_ = 0;               // pieces of TitansPytorchStream::history
  TensorView embeddings_;         // [vocab, model_dim] as stored
  TensorView longterm_;           // [inserted, model_dim] as stored
  TensorView longterm_rows_;      // the same, act
  NumberNetwork axes_[2];         // of periods, of positions in one
  TensorView inner_positions_;    // [period, model_dim] act: what the second one gives
  TensorView stream_embeddings_;  // [streams, model_dim] f32
  TensorView ones_;               // [model_dim] f32
  std::vector<TitansPytorchLayer> layers_;
  Norm norm_;
  PackedMatrix head_;  // [vocab, model_dim]
};

}  // namespace

absl::StatusOr<std::unique_ptr<Network>> MakeTitansPytorchNetwork(const NetworkBuilder& builder,
                                                                  const TitansPytorchParts& parts) {
  return TitansPytorchNetwork::Make(builder, parts);
}

}  // namespace mneme
