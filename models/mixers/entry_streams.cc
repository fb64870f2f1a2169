#include "models/mixers/entry_streams.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace mneme {

absl::Status EntryStreams::Add(const MemoryFields& fields, absl::StatusOr<Projection> projection,
                               const StreamOptions& options) {
  MNEME_RETURN_IF_ERROR(projection.status());
  Stream stream = {.projection = *std::move(projection), .options = options};
  if (const int width = options.conv_width; width > 0) {
    const LayerBuilder& builder = fields.builder();
    const int channels = stream.projection.out();
    MNEME_ASSIGN_OR_RETURN(
        stream.conv, builder.weights().Floats(
                         builder.Weight(absl::StrCat("attn.", options.name, "_conv1d.weight")),
                         {channels, 1, width}, WeightInit::kConvolution));
    stream.conv.shape = {channels, width};
    stream.window =
        fields.AddWindow(absl::StrCat(options.name, "_window"), width - 1, stream.projection);
  }
  streams_.push_back(std::move(stream));
  return absl::OkStatus();
}

std::vector<std::span<const PackedMatrix>> EntryStreams::products() const {
  std::vector<std::span<const PackedMatrix>> products;
  for (const Stream& stream : streams_) products.push_back(stream.projection.weights);
  return products;
}

std::vector<TensorView> EntryStreams::Read(ForwardContext& ctx, const StepEntries& entries) const {
  std::vector<TensorView> read;
  std::vector<ProjectionArgs> products;
  std::vector<ShortConvArgs> convolutions;
  std::vector<ActivateArgs> activations;
  for (const Stream& stream : streams_) {
    const StreamOptions& options = stream.options;
    const Projection& projection = stream.projection;
    const int64_t rows = projection.by_memory ? entries.count : entries.tokens;
    // What is the same for all memories is spread over the entries by what comes first.
    const TensorView spread =
        !projection.by_memory && !options.by_token ? entries.entry_tokens : TensorView{};
    const bool convolved = options.conv_width > 0;
    const bool activated =
        options.activation != Activation::kIdentity || (!spread.empty() && !convolved);
    const Shape shape{rows, projection.out()}, by_entry{entries.count, projection.out()};
    const bool rounds = convolved || activated || options.by_token;
    TensorView y = rounds && !projection.has_bias()
                       ? ctx.TempOfProducts(entries.x, projection.weights, shape)
                       : ctx.Temp(shape);
    products.push_back({.projection = projection,
                        .x = entries.x,
                        .y = y,
                        .entry_rows = entries.entry_tokens,
                        .group_offsets = entries.group_offsets});
    if (convolved) {
      convolutions.push_back({.x = y,
                              .entry_rows = spread,
                              .weight = stream.conv,
                              .activation = options.conv_activation,
                              .segments = entries.segments,
                              .window = ctx.State(stream.window),
                              .y = ctx.Temp(by_entry)});
      y = convolutions.back().y;
    }
    if (activated) {
      activations.push_back({.x = y,
                             .entry_rows = convolved ? TensorView{} : spread,
                             .activation = options.activation,
                             .y = ctx.Temp(by_entry)});
      y = activations.back().y;
    }
    read.push_back(y);
  }
  Project(ctx.kernels(), products);
  if (!convolutions.empty()) ctx.kernels().ShortConv(convolutions);
  if (!activations.empty()) ctx.kernels().Activate(activations);
  return read;
}

absl::StatusOr<TokenConstant> TokenConstant::Make(const LayerBuilder& builder, float value) {
  TokenConstant constant;
  MNEME_ASSIGN_OR_RETURN(constant.table_, builder.weights().Constant(std::vector<float>(
                                              static_cast<size_t>(builder.vocab), value)));
  constant.table_.shape = {builder.vocab, 1};
  return constant;
}

TensorView TokenConstant::Read(ForwardContext& ctx) const {
  const TensorView y = ctx.Temp({ctx.batch.tokens, 1});
  ctx.kernels().Embedding({.ids = ctx.batch.token_ids, .table = table_, .y = y});
  return y;
}

TensorView ByHead(TensorView view, int64_t heads) {
  view.shape = {view.shape[0], heads, view.shape[1] / heads};
  return view;
}

TensorView Flat(TensorView view) {
  view.shape = {view.shape[0], view.shape[1] * view.shape[2]};
  return view;
}

}  // namespace mneme
