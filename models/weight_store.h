// Weights of a checkpoint: checks what it holds against what a network expects, and brings it into
// a backend's memory.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/thread_pool.h"
#include "kernels/backend.h"
#include "kernels/tensor.h"
#include "kernels/tensor_view.h"
#include "models/checkpoint.h"
#include "models/weights.h"

namespace mneme {

// A network takes its weights twice, in the same order. The first time names, shapes and element
// types are checked and sizes added up; nothing is read, and the handles have no data. After
// StartLoading(), which allocates everything at once, the same calls read, check and pack. So a
// folder that does not fit its configuration is refused in milliseconds, and memory is asked for
// once.
//
// Beside the errors of Weights, INVALID_ARGUMENT for a value that is NaN or infinite, with its
// index.
class WeightStore final : public Weights {
 public:
  using Progress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

  // `backend` is asked for packed sizes; null where only a plan is wanted. Both must outlive the
  // store.
  WeightStore(const Checkpoint& checkpoint, const Backend* backend);

  absl::Status StartLoading(Backend& backend, Progress progress);
  // In place of StartLoading, where only a plan is wanted: reads what was taken and refuses the
  // values that loading would.
  absl::Status CheckValues();

  bool Has(absl::string_view name) const override { return checkpoint_.Find(name) != nullptr; }
  bool HasShape(absl::string_view name, Shape shape) const override;
  bool Differ(absl::string_view a, absl::string_view b) const override;
  int Rows(absl::string_view name, int otherwise) const override;
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
  void Ignore(absl::string_view name) override { ignored_.emplace(name); }
  // Tensors that nobody took or ignored.
  std::vector<std::string> Unused() const;

  int64_t parameters() const { return parameters_; }  // of what was taken, each element once
  int64_t resident_bytes() const { return used_; }    // in backend memory
  std::string dtypes() const;                         // "bf16", or "bf16+f32", larger part first
  // A hash of names, shapes, element types and all bytes taken; known after loading. It does not
  // depend on the order of taking or on how tensors are spread over files.
  uint64_t fingerprint() const { return fingerprint_; }
  // The memory that handles point into; call once, after loading.
  Buffer TakeMemory() { return std::move(memory_); }

 private:
  // Rows [first_row, first_row + rows) of a tensor, checked against what was asked for.
  struct Piece {
    std::string label;  // of the tensor, for messages
    DType dtype = DType::kF32;
    std::span<const std::byte> bytes;
    const Checkpoint::Entry* entry = nullptr;
  };
  absl::StatusOr<Piece> Take(absl::string_view name, Shape stored, int64_t first_row, int64_t rows);
  // While loading: checks the values, and adds them to the fingerprint.
  absl::Status Scan(const Piece& piece);
  // The file's pages need not stay in this process.
  static void Release(const Checkpoint::Entry& entry, std::span<const std::byte> bytes);
  static void Release(const Piece& piece) { Release(*piece.entry, piece.bytes); }
  absl::StatusOr<PackedMatrix> Pack(const Piece& piece, DType dtype, int out, int in);
  // The same of a piece whose elements are `bytes`.
  absl::StatusOr<PackedMatrix> PackBytes(const Piece& piece, std::span<const std::byte> bytes,
                                         DType dtype, int out, int in);
  // Place for the next `bytes`, at the same address in both passes; null in the first.
  std::byte* Place(int64_t bytes);
  void Done(const Piece& piece);

  const Checkpoint& checkpoint_;
  const Backend* planning_backend_;
  Backend* backend_ = nullptr;  // set while loading
  std::unique_ptr<ThreadPool> pool_;
  Progress progress_;
  Buffer memory_;
  int64_t used_ = 0;
  int64_t taken_bytes_ = 0;    // in this pass; a piece taken twice counts twice
  int64_t planned_bytes_ = 0;  // what taken_bytes_ came to in the first pass

  std::set<std::string, std::less<>> taken_;  // pieces, "name" or "name[first_row]"
  std::set<std::string, std::less<>> used_names_;
  std::set<std::string, std::less<>> ignored_;
  std::vector<Piece> pieces_;  // what was taken, each piece once
  std::map<DType, int64_t> bytes_by_dtype_;
  int64_t parameters_ = 0;
  uint64_t fingerprint_ = 0;
};

}  // namespace mneme
