// Linear maps of a layer, as its mixer holds them.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/kernels.h"
#include "kernels/tensor_view.h"
#include "models/layer_builder.h"

namespace mneme {

enum class Bias : bool { kNone, kAdded };
// How a checkpoint stores a matrix: as it is multiplied, or the other way round (Conv1D).
enum class MatrixOrder : bool { kOutIn, kInOut };

// y = W x (+ bias). Of one matrix for all tokens, or of one for each memory of a layer.
struct Projection {
  std::vector<PackedMatrix> weights;  // [out, in]; none: there is no such projection
  TensorView bias;                    // [weights, out] f32, or empty
  bool by_memory = false;             // entries of memory m use weights[m]

  bool exists() const { return !weights.empty(); }
  int out() const { return weights.front().out_features; }
  // The one for all tokens; without data where there is no such projection.
  PackedMatrix matrix() const { return exists() ? weights.front() : PackedMatrix{}; }
  bool has_bias() const { return !bias.empty(); }
};

// The tensors "<name>.weight", [out, in] or [in, out], and "<name>.bias", [out].
absl::StatusOr<Projection> TakeProjection(const LayerBuilder& builder, absl::string_view name,
                                          int out, int in, Bias bias = Bias::kNone,
                                          MatrixOrder order = MatrixOrder::kOutIn);
// The same of each memory, by the names of all of them.
absl::StatusOr<Projection> TakeProjections(const LayerBuilder& builder,
                                           std::span<const std::string> names, int out, int in,
                                           Bias bias = Bias::kNone);
// The tensors of one projection as several, by consecutive outputs: `parts` has those of each.
absl::StatusOr<std::vector<Projection>> TakeProjectionParts(
    const LayerBuilder& builder, absl::string_view name, std::span<const int> parts, int in,
    Bias bias = Bias::kNone, MatrixOrder order = MatrixOrder::kOutIn);

// Rows [first, first + count) of a tensor of f32.
TensorView RowsOf(TensorView tensor, int64_t first, int64_t count);

// One product of Project().
struct ProjectionArgs {
  const Projection& projection;
  TensorView x;  // [rows, in], as LinearArgs::x
  TensorView y;  // [rows or entries, out], as LinearArgs::y; act where there is a bias
  // Set for projections by memory, as in LinearArgs.
  TensorView entry_rows, group_offsets;
};

// All products as one call of Linear.
void Project(Kernels& kernels, std::span<const ProjectionArgs> products);
inline void Project(Kernels& kernels, std::initializer_list<ProjectionArgs> products) {
  Project(kernels, std::span(products.begin(), products.size()));
}

// y += W x (+ bias), ungrouped.
void AddProjection(Kernels& kernels, const Projection& projection, const TensorView& x,
                   const TensorView& y);

}  // namespace mneme
