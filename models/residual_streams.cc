#include "models/residual_streams.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/stream_steps.h"

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

// Lets room for an activation be what `products` take.
void Round(const ForwardContext& ctx, const BranchWants::Products& products, TensorView* room) {
  if (products.empty()) return;
  const Workspace::Scope scope(ctx.workspace);
  room->dtype = ctx.TempForProducts(room->shape, products).dtype;
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

BranchInput StreamBranch::Enter(ForwardContext& ctx, const StreamWrite& before,
                                const TensorView& streams, const TensorView& post,
                                const BranchWants& wants) const {
  const Shape shape{streams.shape[0], streams.shape[2]};
  Kernels& kernels = ctx.kernels();
  StreamSteps* const steps = single_ ? nullptr : StreamStepsOf(kernels);
  const TensorView new_post = writes_ ? post : TensorView{};
  // Means of tokens that come together are taken by themselves, of numbers that nothing rounds.
  const bool has_mean = wants.mean.chunk > 0;
  const bool passes_mean = has_mean && steps != nullptr && ctx.batch.longest_row == 1;
  BranchInput input;
  for (int i = 0; i < 2; ++i) {
    const auto& [norm, products] = wants.normed[i];
    if (norm == nullptr) continue;
    input.normed[i] = ctx.Temp(shape);
    if (i == 0 || !has_mean || passes_mean) Round(ctx, products, &input.normed[i]);
  }
  if (has_mean) {
    input.mean = ctx.Temp(shape);
    if (passes_mean) Round(ctx, wants.of_mean, &input.mean);
  }
  const auto norm_args = [&](int i) {
    const Norm* const norm = wants.normed[i].norm;
    if (norm == nullptr) return RmsNormArgs{};
    return RmsNormArgs{.weight = norm->weight, .eps = norm->eps, .y = input.normed[i]};
  };
  ChunkMeanArgs mean = wants.mean;
  mean.x = input.normed[1];
  mean.y = input.mean;
  if (steps != nullptr &&
      steps->PassStreams(
          {.write = {.x = before.output, .post = before.post, .y = streams},
           .read = {.mixing = mixing_, .x = streams, .y = wants.input, .post = new_post},
           .norms = {norm_args(0), norm_args(1)},
           .mean = passes_mean ? mean : ChunkMeanArgs{}})) {
    if (has_mean && !passes_mean) kernels.ChunkMean(mean);
    return input;
  }

  const TensorView x = wants.input.empty() ? ctx.Temp(shape) : wants.input;
  FinishStreams(ctx, before, streams, ones_);
  if (single_) {
    kernels.SumStreams({.x = streams, .y = x});
  } else {
    kernels.ReadStreams({.mixing = mixing_, .x = streams, .y = x, .post = new_post});
  }
  if (passes_mean) {
    for (TensorView* rounded : {&input.normed[1], &input.mean}) {
      rounded->dtype = ctx.backend.activation_dtype();
    }
    mean.x = input.normed[1];
    mean.y = input.mean;
  }
  for (int i = 0; i < 2; ++i) {
    if (wants.normed[i].norm != nullptr)
      ApplyNorm(kernels, *wants.normed[i].norm, x, input.normed[i]);
  }
  if (has_mean) kernels.ChunkMean(mean);
  return input;
}

void FinishStreams(ForwardContext& ctx, const StreamWrite& last, const TensorView& streams,
                   const TensorView& ones) {
  if (last.output.empty()) return;
  if (streams.shape[1] > 1) {
    ctx.kernels().WriteStreams({.x = last.output, .post = last.post, .y = streams});
    return;
  }
  ctx.kernels().AddScaled(
      {.x = last.output,
       .scale = ones,
       .y = {streams.data, streams.dtype, {streams.shape[0], streams.shape[2]}}});
}

}  // namespace mneme
