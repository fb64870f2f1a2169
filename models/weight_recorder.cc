#include "models/weight_recorder.h"

#include <algorithm>

#include "absl/strings/match.h"

namespace mneme {

bool WeightRecorder::Has(absl::string_view name) const {
  return std::none_of(absent_.begin(), absent_.end(),
                      [&](const std::string& end) { return absl::EndsWith(name, end); });
}

void WeightRecorder::Add(absl::string_view name, const Shape& shape, WeightInit init) {
  // A tensor may be taken in parts, or twice: as the embedding and as the head.
  if (!names_.emplace(name).second) return;
  tensors_.push_back({std::string(name), {shape.dims, shape.dims + shape.rank}, init, {}});
}

absl::StatusOr<PackedMatrix> WeightRecorder::MatrixAs(absl::string_view name, Shape stored) {
  Add(name, stored, WeightInit::kNormal);
  const auto out = static_cast<int>(stored[0]);
  return PackedMatrix{nullptr, DType::kF32, out, static_cast<int>(stored.elements() / out)};
}

absl::StatusOr<PackedMatrix> WeightRecorder::MatrixRows(absl::string_view name, int total_rows,
                                                        int in, int, int rows) {
  Add(name, {total_rows, in}, WeightInit::kNormal);
  return PackedMatrix{nullptr, DType::kF32, rows, in};
}

absl::StatusOr<PackedMatrix> WeightRecorder::MatrixOfRows(absl::string_view name, int total_rows,
                                                          int in, std::span<const int> rows) {
  Add(name, {total_rows, in}, WeightInit::kNormal);
  return PackedMatrix{nullptr, DType::kF32, static_cast<int>(rows.size()), in};
}

absl::StatusOr<PackedMatrix> WeightRecorder::MatrixColumns(absl::string_view name, int out,
                                                           int total_columns, int, int columns) {
  Add(name, {out, total_columns}, WeightInit::kNormal);
  return PackedMatrix{nullptr, DType::kF32, out, columns};
}

absl::StatusOr<PackedMatrix> WeightRecorder::TransposedColumns(absl::string_view name, int in,
                                                               int total_out, int, int out) {
  Add(name, {in, total_out}, WeightInit::kNormal);
  return PackedMatrix{nullptr, DType::kF32, out, in};
}

absl::StatusOr<std::vector<PackedMatrix>> WeightRecorder::MatrixGroup(
    std::span<const std::string> names, int out, int in) {
  for (const std::string& name : names) Add(name, {out, in}, WeightInit::kNormal);
  return std::vector<PackedMatrix>(names.size(), PackedMatrix{nullptr, DType::kF32, out, in});
}

absl::StatusOr<TensorView> WeightRecorder::Table(absl::string_view name, int rows, int columns) {
  Add(name, {rows, columns}, WeightInit::kNormal);
  return TensorView{nullptr, DType::kF32, {rows, columns}};
}

absl::StatusOr<TensorView> WeightRecorder::FloatGroup(std::span<const std::string> names,
                                                      Shape stored, WeightInit init) {
  for (const std::string& name : names) Add(name, stored, init);
  return TensorView{nullptr, DType::kF32, {static_cast<int64_t>(names.size()), stored.elements()}};
}

absl::StatusOr<std::vector<float>> WeightRecorder::Values(absl::string_view name, Shape stored,
                                                          WeightInit init) {
  Add(name, stored, init);
  return std::vector<float>(static_cast<size_t>(stored.elements()));
}

absl::Status WeightRecorder::Expect(absl::string_view name, std::span<const float> values) {
  const size_t before = tensors_.size();
  Add(name, {static_cast<int64_t>(values.size())}, WeightInit::kNormal);
  if (tensors_.size() > before) tensors_.back().values.assign(values.begin(), values.end());
  return absl::OkStatus();
}

absl::StatusOr<TensorView> WeightRecorder::Constant(std::span<const float> values) {
  return TensorView{nullptr, DType::kF32, {static_cast<int64_t>(values.size())}};
}

absl::StatusOr<TensorView> WeightRecorder::ConstantOf(DType dtype, std::span<const double> values) {
  return TensorView{nullptr, dtype, {static_cast<int64_t>(values.size())}};
}

absl::StatusOr<TensorView> WeightRecorder::Reserve(DType dtype, Shape shape) {
  return TensorView{nullptr, dtype, shape};
}

}  // namespace mneme
