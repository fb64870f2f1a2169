#include "models/mixers/state_space.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace mneme {

absl::StatusOr<std::vector<StreamConvolution>> StreamConvolution::Take(
    const MemoryFields& fields, std::span<const Projection* const> streams,
    std::span<const char* const> names, int width, bool bias) {
  const LayerBuilder& builder = fields.builder();
  int channels = 0;
  for (const Projection* stream : streams) channels += stream->out();
  MNEME_ASSIGN_OR_RETURN(TensorView weight,
                         builder.weights().Floats(builder.Weight("mixer.conv1d.weight"),
                                                  {channels, 1, width}, WeightInit::kConvolution));
  weight.shape = {channels, width};
  TensorView biases;
  if (bias) {
    MNEME_ASSIGN_OR_RETURN(biases, builder.weights().Floats(builder.Weight("mixer.conv1d.bias"),
                                                            {channels}, WeightInit::kZeros));
  }
  std::vector<StreamConvolution> convolutions;
  int first = 0;
  for (size_t i = 0; i < streams.size(); ++i) {
    const int count = streams[i]->out();
    StreamConvolution convolution;
    convolution.weight_ = RowsOf(weight, first, count);
    if (bias) convolution.bias_ = RowsOf(biases, first, count);
    convolution.window_ =
        fields.AddWindow(absl::StrCat(names[i], "_window"), width - 1, *streams[i]);
    convolutions.push_back(convolution);
    first += count;
  }
  return convolutions;
}

absl::StatusOr<TensorView> TakeRates(const LayerBuilder& builder, int channels, int states) {
  const Shape stored = states > 0 ? Shape{channels, states} : Shape{channels};
  MNEME_ASSIGN_OR_RETURN(
      const std::vector<float> logs,
      builder.weights().Values(builder.Weight("mixer.A_log"), stored, WeightInit::kDecay));
  const int rows = std::max(states, 1);
  std::vector<float> rates(logs.size());
  for (int c = 0; c < channels; ++c) {
    for (int n = 0; n < rows; ++n) {
      // A step of zero times infinity would be no number.
      const double rate = std::exp(static_cast<double>(logs[static_cast<size_t>(c) * rows + n]));
      rates[static_cast<size_t>(n) * channels + c] =
          static_cast<float>(-std::min<double>(rate, FLT_MAX));
    }
  }
  MNEME_ASSIGN_OR_RETURN(TensorView tensor, builder.weights().Constant(rates));
  tensor.shape = states > 0 ? Shape{states, channels} : Shape{channels};
  return tensor;
}

TensorView TempOfProjection(const ForwardContext& ctx, const TensorView& x,
                            const Projection& projection) {
  const Shape shape{x.shape[0], projection.out()};
  return projection.has_bias() ? ctx.Temp(shape) : ctx.TempOfProducts(x, projection.weights, shape);
}

}  // namespace mneme
