#include "models/token_shift.h"

#include <cstddef>
#include <string>

namespace mneme {
namespace {

TokenShiftArgs ArgsOf(const ForwardContext& ctx, const TokenShift& shift, const TensorView& x,
                      std::span<const std::span<const PackedMatrix>> weights) {
  const Shape shape{shift.mix.shape[0], x.shape[0], x.shape[1]};
  return {.x = x,
          .mix = shift.mix,
          .segments = ctx.row_index.segments,
          .last = ctx.State(shift.last),
          .y = ctx.TempForProducts(shape, weights)};
}

}  // namespace

TokenShift MakeTokenShift(const LayerBuilder& builder, absl::string_view name,
                          const TensorView& mix) {
  return {.mix = mix,
          .last = builder.AddState({.name = std::string(name),
                                    .dtype = builder.network.state_format.window_dtype,
                                    .shape = {1, builder.model_dim},
                                    .guard = StateGuard::kFed})};
}

TensorView NormedAndShifted(ForwardContext& ctx, const Norm& norm, const TensorView& hidden,
                            const TensorView& x, bool keep, const TokenShift& shift,
                            std::span<const std::span<const PackedMatrix>> weights) {
  const TokenShiftArgs args = ArgsOf(ctx, shift, x, weights);
  NormAndShift(ctx.kernels(), norm, hidden, x, keep, args);
  return args.y;
}

void NormAndShift(Kernels& kernels, const Norm& norm, const TensorView& hidden, const TensorView& x,
                  bool keep, const TokenShiftArgs& shift) {
  if (norm.kind == NormKind::kLayer) {
    LayerNormArgs args = {
        .x = hidden, .weight = norm.weight, .bias = norm.bias, .eps = norm.eps, .y = x};
    if (!keep) args.y.data = nullptr;
    if (kernels.NormAndShift(args, shift)) return;
  }
  ApplyNorm(kernels, norm, hidden, x);
  kernels.TokenShift(shift);
}

TensorView Part(const TensorView& tensor, int64_t i) {
  TensorView part = tensor;
  part.shape.rank = tensor.shape.rank - 1;
  for (int d = 0; d < Shape::kMaxRank; ++d) {
    part.shape.dims[d] = d < part.shape.rank ? tensor.shape[d + 1] : 0;
  }
  part.data = static_cast<std::byte*>(tensor.data) + i * part.bytes();
  return part;
}

}  // namespace mneme
