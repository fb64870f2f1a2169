// Weights by name, as the parts of a network ask for them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/tensor_view.h"

namespace mneme {

// How a tensor of a network is drawn before it is trained.
enum class WeightInit : uint8_t {
  kNormal,       // normal, of the network's initializer_range
  kConvolution,  // normal, of its own range
  kOnes,
  kZeros,
  kDecay,     // log of a uniform number from (0, 16): A_log
  kTimeStep,  // inverse softplus of a time step that is log-uniform in [0.001, 0.1]: dt_bias
};

// A network asks for its weights in one order, whoever answers: a checkpoint that is checked,
// loaded or both (WeightStore), or a list of what a random model needs (WeightRecorder). Errors
// name the file and the tensor: NOT_FOUND for a missing one, INVALID_ARGUMENT for a wrong shape or
// element type.
class Weights {
 public:
  virtual ~Weights() = default;

  virtual bool Has(absl::string_view name) const = 0;
  // Whether there is a tensor of exactly this shape.
  virtual bool HasShape(absl::string_view name, Shape shape) const = 0;
  // Whether there are both of these tensors, and they are not the same.
  virtual bool Differ(absl::string_view a, absl::string_view b) const = 0;
  // The rows of a matrix, where a file decides; `otherwise` where there is no such matrix or no
  // file.
  virtual int Rows(absl::string_view name, int otherwise) const = 0;

  // A matrix [out, in], packed, in its stored element type.
  absl::StatusOr<PackedMatrix> Matrix(absl::string_view name, int out, int in) {
    return MatrixRows(name, out, in, 0, out);
  }
  // A matrix that is stored with further dimensions: as [out, product of the others].
  virtual absl::StatusOr<PackedMatrix> MatrixAs(absl::string_view name, Shape stored) = 0;
  // Its rows [first_row, first_row + rows) of [total_rows, in], as a matrix of their own.
  virtual absl::StatusOr<PackedMatrix> MatrixRows(absl::string_view name, int total_rows, int in,
                                                  int first_row, int rows) = 0;
  // Some of its rows, in this order, as a matrix of their own; a row of -1 is zeros.
  virtual absl::StatusOr<PackedMatrix> MatrixOfRows(absl::string_view name, int total_rows, int in,
                                                    std::span<const int> rows) = 0;
  // Its columns [first_column, first_column + columns) of [out, total_columns], likewise; those
  // beyond its last are zeros.
  virtual absl::StatusOr<PackedMatrix> MatrixColumns(absl::string_view name, int out,
                                                     int total_columns, int first_column,
                                                     int columns) = 0;
  // A matrix of a tensor that is stored the other way round, [in, total_out]: its columns
  // [first_column, first_column + out), as a matrix [out, in].
  virtual absl::StatusOr<PackedMatrix> TransposedColumns(absl::string_view name, int in,
                                                         int total_out, int first_column,
                                                         int out) = 0;
  // Matrices of one shape that one grouped product takes: where their element types differ, f32.
  virtual absl::StatusOr<std::vector<PackedMatrix>> MatrixGroup(std::span<const std::string> names,
                                                                int out, int in) = 0;
  // A table [rows, columns] as it is stored, for Embedding.
  virtual absl::StatusOr<TensorView> Table(absl::string_view name, int rows, int columns) = 0;
  // Anything small, as f32. `stored` is its shape in the file, e.g. [channels, 1, width].
  absl::StatusOr<TensorView> Floats(absl::string_view name, Shape stored, WeightInit init) {
    const std::string names[] = {std::string(name)};
    absl::StatusOr<TensorView> floats = FloatGroup(names, stored, init);
    if (floats.ok()) floats->shape = stored;
    return floats;
  }
  // Several of one shape, one behind the other: [names, elements].
  virtual absl::StatusOr<TensorView> FloatGroup(std::span<const std::string> names, Shape stored,
                                                WeightInit init) = 0;
  // The values themselves, for constants that are made of them; zeros while nothing is read.
  virtual absl::StatusOr<std::vector<float>> Values(absl::string_view name, Shape stored,
                                                    WeightInit init) = 0;
  // Refuses a tensor of other values than these, but for rounding; it is used for nothing else.
  virtual absl::Status Expect(absl::string_view name, std::span<const float> values) = 0;
  // f32 values that come from no file.
  virtual absl::StatusOr<TensorView> Constant(std::span<const float> values) = 0;
  // The same as `dtype`, kF64 or kF32, to which they are rounded.
  virtual absl::StatusOr<TensorView> ConstantOf(DType dtype, std::span<const double> values) = 0;
  // Memory for what the network makes of its weights once they are there (Network::Prepare).
  virtual absl::StatusOr<TensorView> Reserve(DType dtype, Shape shape) = 0;

  // Declares a tensor that may be in the file and is never used.
  virtual void Ignore(absl::string_view name) = 0;
};

// Declares a tensor without elements, of this shape, that may be in the file.
inline absl::Status IgnoreEmpty(Weights& weights, absl::string_view name, Shape stored) {
  weights.Ignore(name);
  if (!weights.Has(name) || weights.HasShape(name, stored)) return absl::OkStatus();
  return weights.Values(name, stored, WeightInit::kZeros).status();
}

}  // namespace mneme
