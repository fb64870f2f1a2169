#include "models/residual_streams.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

// [rows, columns], row by row, the other way round.
std::vector<float> Transposed(const std::vector<float>& values, size_t columns) {
  const size_t rows = values.size() / columns;
  std::vector<float> transposed(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    transposed[i % columns * rows + i / columns] = values[i];
  }
  return transposed;
}

}  // namespace

absl::StatusOr<StreamBranch> StreamBranch::Take(const LayerBuilder& builder,
                                                absl::string_view prefix,
                                                const ResidualStreamsConfig& config, bool writes) {
  Weights& weights = builder.weights();
  const int streams = config.streams, dim = builder.model_dim;
  StreamBranch branch;
  branch.writes_ = writes;
  branch.single_ = streams == 1;
  if (branch.single_) {
    MNEME_ASSIGN_OR_RETURN(branch.ones_,
                           weights.Constant(std::vector<float>(static_cast<size_t>(dim), 1.0f)));
    return branch;
  }
  const auto name = [&](const char* tensor) {
    return builder.Weight(absl::StrCat(prefix, tensor));
  };
  StreamMixing& mixing = branch.mixing_;
  mixing.kind = config.mixing;
  MNEME_ASSIGN_OR_RETURN(mixing.gain,
                         weights.Floats(name("norm.gamma"), {dim}, WeightInit::kZeros));
  MNEME_ASSIGN_OR_RETURN(mixing.alpha, weights.Floats(name("static_alpha"), {streams, 1 + streams},
                                                      WeightInit::kNormal));
  // Later packages have several fractions of a stream, of which one is used.
  const Shape flat{dim, 1 + streams};
  const bool has_fractions = mixing.kind == StreamMixing::Kind::kConstrained &&
                             !weights.HasShape(name("dynamic_alpha_fn"), flat);
  MNEME_ASSIGN_OR_RETURN(
      const std::vector<float> alpha_weight,
      weights.Values(name("dynamic_alpha_fn"), has_fractions ? Shape{1, dim, 1 + streams} : flat,
                     WeightInit::kNormal));
  MNEME_ASSIGN_OR_RETURN(mixing.alpha_weight, weights.Constant(Transposed(
                                                  alpha_weight, 1 + static_cast<size_t>(streams))));
  mixing.alpha_weight.shape = {1 + streams, dim};
  const bool dynamic = mixing.kind == StreamMixing::Kind::kDynamic;
  std::vector<float> scales;
  const auto take_scale = [&](const char* tensor, const Shape& stored) -> absl::Status {
    MNEME_ASSIGN_OR_RETURN(const std::vector<float> scale,
                           weights.Values(name(tensor), stored, WeightInit::kOnes));
    scales.push_back(scale.front());
    return absl::OkStatus();
  };
  if (dynamic) {
    MNEME_RETURN_IF_ERROR(take_scale("dynamic_alpha_scale", {}));
    scales.push_back(scales.front());
  } else {
    MNEME_RETURN_IF_ERROR(take_scale("pre_branch_scale", {1}));
    MNEME_RETURN_IF_ERROR(take_scale("residual_scale", {1}));
  }
  if (writes) {
    MNEME_RETURN_IF_ERROR(take_scale(dynamic ? "dynamic_beta_scale" : "h_post_scale", {}));
    MNEME_ASSIGN_OR_RETURN(mixing.beta,
                           weights.Floats(name("static_beta"), {streams}, WeightInit::kOnes));
    MNEME_ASSIGN_OR_RETURN(mixing.beta_weight,
                           weights.Floats(name("dynamic_beta_fn"), {dim}, WeightInit::kNormal));
  } else {
    scales.push_back(0);
  }
  MNEME_ASSIGN_OR_RETURN(mixing.scales, weights.Constant(scales));
  return branch;
}

TensorView StreamBranch::Read(ForwardContext& ctx, const TensorView& streams,
                              const TensorView& input) const {
  if (!single_) {
    const TensorView post = writes_ ? ctx.Temp({streams.shape[0], streams.shape[1]}) : TensorView{};
    ctx.kernels().ReadStreams({.mixing = mixing_, .x = streams, .y = input, .post = post});
    return post;
  }
  ctx.kernels().SumStreams({.x = streams, .y = input});
  return {};
}

void StreamBranch::Write(ForwardContext& ctx, const TensorView& post, const TensorView& output,
                         const TensorView& streams) const {
  if (!single_) {
    ctx.kernels().WriteStreams({.x = output, .post = post, .y = streams});
    return;
  }
  ctx.kernels().AddScaled(
      {.x = output,
       .scale = ones_,
       .y = {streams.data, streams.dtype, {streams.shape[0], streams.shape[2]}}});
}

}  // namespace mneme
