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

MemoryStreams EntryStreams::Project(ForwardContext& ctx, const StepEntries& entries) const {
  MemoryStreams read;
  std::vector<ProjectionArgs> products;
  for (const Stream& stream : streams_) {
    const StreamOptions& options = stream.options;
    const Projection& projection = stream.projection;
    const int64_t rows = projection.by_memory ? entries.count : entries.tokens;
    // What is the same for all memories is spread over the entries by what comes first.
    const TensorView spread =
        !projection.by_memory && !options.by_token ? entries.entry_tokens : TensorView{};
    const bool convolved = options.conv_width > 0;
    const bool activated = options.activation != Activation::kIdentity || options.scale != 1 ||
                           (!spread.empty() && !convolved);
    const Shape shape{rows, projection.out()}, by_entry{entries.count, projection.out()};
    const TensorView y = TempOf(ctx, entries, stream, shape, convolved || activated);
    products.push_back({.projection = projection,
                        .x = entries.x,
                        .y = y,
                        .entry_rows = entries.entry_tokens,
                        .group_offsets = entries.group_offsets});
    if (!convolved && !activated) {
      read.Add(y);
      continue;
    }
    MemoryStream parts;
    TensorView last = y;
    if (convolved) {
      last = ctx.Temp(by_entry);
      parts.convolution = ShortConvArgs{.x = y,
                                        .entry_rows = spread,
                                        .weight = stream.conv,
                                        .activation = options.conv_activation,
                                        .segments = entries.segments,
                                        .window = ctx.State(stream.window),
                                        .y = last};
    }
    if (activated) {
      const TensorView x = last;
      last = ctx.Temp(by_entry);
      parts.activation = ActivateArgs{.x = x,
                                      .entry_rows = convolved ? TensorView{} : spread,
                                      .activation = options.activation,
                                      .scale = options.scale,
                                      .y = last};
    }
    read.Add(last, parts);
  }
  mneme::Project(ctx.kernels(), products);
  return read;
}

TensorView EntryStreams::TempOf(ForwardContext& ctx, const StepEntries& entries,
                                const Stream& stream, Shape shape, bool processed) {
  const Projection& projection = stream.projection;
  const StreamOptions& options = stream.options;
  if (projection.has_bias()) return ctx.Temp(shape);
  // A window of bf16 rounds what enters it, and a product of bf16 weights what it multiplies.
  const bool rounds =
      !options.factor_of.empty() || (options.conv_width > 0 && stream.window.dtype == DType::kBF16);
  if (rounds && !entries.routed() && ctx.batch.longest_row == 1) {
    return ctx.TempForRounding(entries.x, projection.weights.front(), options.factor_of, shape);
  }
  return processed || options.by_token ? ctx.TempOfProducts(entries.x, projection.weights, shape)
                                       : ctx.Temp(shape);
}

absl::StatusOr<TokenConstant> TokenConstant::Make(const LayerBuilder& builder, float value) {
  TokenConstant constant;
  const float values[] = {value};
  MNEME_ASSIGN_OR_RETURN(constant.value_, builder.weights().Constant(values));
  constant.value_.shape = {1, 1};
  return constant;
}

TensorView TokenConstant::Read(ForwardContext& ctx) const {
  const TensorView y = ctx.Temp({ctx.batch.tokens, 1});
  ctx.backend.Zero(y.data, y.bytes());
  ctx.kernels().AddBias({.bias = value_, .y = y});
  return y;
}

}  // namespace mneme
