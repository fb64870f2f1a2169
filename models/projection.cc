#include "models/projection.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace mneme {

absl::StatusOr<Projection> TakeProjections(const LayerBuilder& builder,
                                           std::span<const std::string> names, int out, int in,
                                           Bias bias) {
  std::vector<std::string> weights, biases;
  for (const std::string& name : names) {
    weights.push_back(builder.Weight(absl::StrCat(name, ".weight")));
    biases.push_back(builder.Weight(absl::StrCat(name, ".bias")));
  }
  Projection projection{.by_memory = true};
  MNEME_ASSIGN_OR_RETURN(projection.weights, builder.weights().MatrixGroup(weights, out, in));
  if (bias == Bias::kAdded) {
    MNEME_ASSIGN_OR_RETURN(projection.bias,
                           builder.weights().FloatGroup(biases, {out}, WeightInit::kZeros));
  }
  return projection;
}

absl::StatusOr<Projection> TakeProjection(const LayerBuilder& builder, absl::string_view name,
                                          int out, int in, Bias bias, MatrixOrder order) {
  if (order == MatrixOrder::kInOut) {
    MNEME_ASSIGN_OR_RETURN(std::vector<Projection> whole,
                           TakeProjectionParts(builder, name, {&out, 1}, in, bias, order));
    return std::move(whole.front());
  }
  const std::string names[] = {std::string(name)};
  MNEME_ASSIGN_OR_RETURN(Projection projection, TakeProjections(builder, names, out, in, bias));
  projection.by_memory = false;
  return projection;
}

TensorView RowsOf(TensorView tensor, int64_t first, int64_t count) {
  const int64_t row = tensor.shape[0] == 0 ? 0 : tensor.shape.elements() / tensor.shape[0];
  if (!tensor.empty()) tensor.data = tensor.as<float>() + first * row;
  tensor.shape.dims[0] = count;
  return tensor;
}

absl::StatusOr<std::vector<Projection>> TakeProjectionParts(const LayerBuilder& builder,
                                                            absl::string_view name,
                                                            std::span<const int> parts, int in,
                                                            Bias bias, MatrixOrder order) {
  int total = 0;
  for (const int rows : parts) total += rows;
  const std::string weight = builder.Weight(absl::StrCat(name, ".weight"));
  std::vector<Projection> projections;
  int first = 0;
  for (const int rows : parts) {
    absl::StatusOr<PackedMatrix> matrix =
        order == MatrixOrder::kOutIn
            ? builder.weights().MatrixRows(weight, total, in, first, rows)
            : builder.weights().TransposedColumns(weight, in, total, first, rows);
    MNEME_RETURN_IF_ERROR(matrix.status());
    projections.push_back({.weights = {*matrix}});
    first += rows;
  }
  if (bias == Bias::kNone) return projections;
  MNEME_ASSIGN_OR_RETURN(const TensorView biases,
                         builder.weights().Floats(builder.Weight(absl::StrCat(name, ".bias")),
                                                  {total}, WeightInit::kZeros));
  first = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    projections[i].bias = RowsOf(biases, first, parts[i]);
    projections[i].bias.shape = {1, parts[i]};
    first += parts[i];
  }
  return projections;
}

void Project(Kernels& kernels, std::span<const ProjectionArgs> products) {
  std::vector<LinearArgs> linear;
  for (const ProjectionArgs& args : products) {
    const bool grouped = args.projection.by_memory;
    linear.push_back({.x = args.x,
                      .weights = args.projection.weights,
                      .entry_rows = grouped ? args.entry_rows : TensorView{},
                      .group_offsets = grouped ? args.group_offsets : TensorView{},
                      .y = args.y,
                      .bias = args.projection.bias});
  }
  kernels.Linear(linear);
}

void AddProjection(Kernels& kernels, const Projection& projection, const TensorView& x,
                   const TensorView& y) {
  const LinearArgs product = {
      .x = x, .weights = projection.weights, .y = y, .accumulate = true, .bias = projection.bias};
  kernels.Linear({&product, 1});
}

}  // namespace mneme
