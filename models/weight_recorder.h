// The tensors that a network asks for, so that a random model can be written: the list that a
// checkpoint of it has to hold.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "models/weights.h"

namespace mneme {

// One tensor of a folder, in the order in which the network asked.
struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  WeightInit init = WeightInit::kNormal;
  std::vector<float> values;  // that it has to hold; none: `init` says
};

// Answers every question as a checkpoint would that has all tensors in their common form, but for
// those whose names end with one of `absent`. Handles have no data.
class WeightRecorder final : public Weights {
 public:
  explicit WeightRecorder(std::vector<std::string> absent) : absent_(std::move(absent)) {}

  const std::vector<TensorSpec>& tensors() const { return tensors_; }

  bool Has(absl::string_view name) const override;
  bool HasShape(absl::string_view, Shape) const override { return true; }
  bool Differ(absl::string_view, absl::string_view) const override { return false; }
  int Rows(absl::string_view, int otherwise) const override { return otherwise; }
  absl::StatusOr<PackedMatrix> MatrixAs(absl::string_view name, Shape stored) override;
  absl::StatusOr<PackedMatrix> MatrixRows(absl::string_view name, int total_rows, int in,
                                          int first_row, int rows) override;
  absl::StatusOr<PackedMatrix> MatrixOfRows(absl::string_view name, int total_rows, int in,
                                            std::span<const int> rows) override;
  absl::StatusOr<PackedMatrix> MatrixColumns(absl::string_view name, int out, int total_columns,
                                             int first_column, int columns) override;
  absl::StatusOr<PackedMatrix> TransposedColumns(absl::string_view name, int in, int total_out,
                                                 int first_column, int out) override;
  absl::StatusOr<std::vector<PackedMatrix>> MatrixGroup(std::span<const std::string> names, int out,
                                                        int in) override;
  absl::StatusOr<TensorView> Table(absl::string_view name, int rows, int columns) override;
  absl::StatusOr<TensorView> FloatGroup(std::span<const std::string> names, Shape stored,
                                        WeightInit init) override;
  absl::StatusOr<std::vector<float>> Values(absl::string_view name, Shape stored,
                                            WeightInit init) override;
  absl::Status Expect(absl::string_view name, std::span<const float> values) override;
  absl::StatusOr<TensorView> Constant(std::span<const float> values) override;
  absl::StatusOr<TensorView> ConstantOf(DType dtype, std::span<const double> values) override;
  absl::StatusOr<TensorView> Reserve(DType dtype, Shape shape) override;
  void Ignore(absl::string_view) override {}

 private:
  void Add(absl::string_view name, const Shape& shape, WeightInit init);

  const std::vector<std::string> absent_;
  std::vector<TensorSpec> tensors_;
  std::set<std::string, std::less<>> names_;
};

}  // namespace mneme
