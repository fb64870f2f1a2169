#include "models/weight_store.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "kernels/float16.h"
#include "models/weight_scan.h"

namespace mneme {
namespace {

constexpr int64_t kWeightAlignment = 64;

bool IsWeightType(const std::optional<DType>& dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

void WidenTo(std::span<const std::byte> bytes, DType dtype, float* out) {
  const size_t n = bytes.size() / static_cast<size_t>(SizeOf(dtype));
  if (dtype == DType::kF32) {
    std::memcpy(out, bytes.data(), bytes.size());
    return;
  }
  for (size_t i = 0; i < n; ++i) {
    uint16_t bits;
    std::memcpy(&bits, bytes.data() + 2 * i, sizeof(bits));
    out[i] = dtype == DType::kBF16 ? F32FromBF16(bits) : F32FromF16(bits);
  }
}

// A number by itself is a row of one.
int64_t StoredRows(const Shape& stored) { return stored.rank == 0 ? 1 : stored[0]; }

std::vector<float> Widened(std::span<const std::byte> bytes, DType dtype) {
  std::vector<float> values(bytes.size() / static_cast<size_t>(SizeOf(dtype)));
  WidenTo(bytes, dtype, values.data());
  return values;
}

}  // namespace

WeightStore::WeightStore(const Checkpoint& checkpoint, const Backend* backend)
    : checkpoint_(checkpoint), planning_backend_(backend) {}

absl::Status WeightStore::StartLoading(Backend& backend, Progress progress) {
  CHECK(backend_ == nullptr) << "a store loads once";
  MNEME_ASSIGN_OR_RETURN(memory_, Buffer::Allocate(backend, std::max(used_, kWeightAlignment)));
  backend_ = &backend;
  pool_ = std::make_unique<ThreadPool>();
  progress_ = std::move(progress);
  planned_bytes_ = std::exchange(taken_bytes_, 0);
  used_ = parameters_ = 0;
  taken_.clear();
  bytes_by_dtype_.clear();
  for (const auto& file : checkpoint_.files()) {
    file->file().Advise(0, file->file().size(), FileAccess::kWillNeed);
  }
  return absl::OkStatus();
}

absl::Status WeightStore::CheckValues() {
  CHECK(backend_ == nullptr) << "loading checks for itself";
  pool_ = std::make_unique<ThreadPool>();
  for (const Piece& piece : pieces_) {
    MNEME_RETURN_IF_ERROR(Scan(piece));
    Release(piece);
  }
  return absl::OkStatus();
}

bool WeightStore::HasShape(absl::string_view name, Shape shape) const {
  const Checkpoint::Entry* entry = checkpoint_.Find(name);
  return entry != nullptr && std::equal(entry->tensor->shape.begin(), entry->tensor->shape.end(),
                                        shape.dims, shape.dims + shape.rank);
}

bool WeightStore::Differ(absl::string_view a, absl::string_view b) const {
  const Checkpoint::Entry *first = checkpoint_.Find(a), *second = checkpoint_.Find(b);
  if (first == nullptr || second == nullptr) return false;
  const std::span<const std::byte> bytes = first->bytes(), others = second->bytes();
  const bool same = first->tensor->dtype_name == second->tensor->dtype_name &&
                    first->tensor->shape == second->tensor->shape &&
                    bytes.size() == others.size() &&
                    std::memcmp(bytes.data(), others.data(), bytes.size()) == 0;
  Release(*first, bytes);
  Release(*second, others);
  return !same;
}

int WeightStore::Rows(absl::string_view name, int otherwise) const {
  const Checkpoint::Entry* entry = checkpoint_.Find(name);
  if (entry == nullptr || entry->tensor->shape.size() != 2) return otherwise;
  const int64_t rows = entry->tensor->shape[0];
  return rows >= 1 && rows <= std::numeric_limits<int>::max() ? static_cast<int>(rows) : otherwise;
}

absl::StatusOr<WeightStore::Piece> WeightStore::Take(absl::string_view name, Shape stored,
                                                     int64_t first_row, int64_t rows) {
  const Checkpoint::Entry* entry = checkpoint_.Find(name);
  if (entry == nullptr) {
    const absl::Status holes = checkpoint_.CheckHoles();
    return absl::NotFoundError(absl::StrCat("tensor \"", name, "\" is not in ", checkpoint_.path(),
                                            ", expected shape ", ShapeToString(stored),
                                            holes.ok() ? "" : "; ", holes.message()));
  }
  const SafetensorsTensor& tensor = *entry->tensor;
  const auto error = [&](absl::string_view message) {
    return absl::InvalidArgumentError(
        absl::StrCat(entry->file->path(), ": tensor \"", name, "\": ", message));
  };
  if (!std::equal(tensor.shape.begin(), tensor.shape.end(), stored.dims,
                  stored.dims + stored.rank)) {
    return error(
        absl::StrCat("shape ", ShapeToString(tensor.shape), ", expected ", ShapeToString(stored)));
  }
  if (!IsWeightType(tensor.dtype)) {
    return error(absl::StrCat("dtype ", tensor.dtype_name, ", expected F32, BF16 or F16"));
  }

  Piece piece{.label = std::string(name), .dtype = *tensor.dtype, .entry = entry};
  const int64_t row_bytes =
      stored.elements() / std::max<int64_t>(StoredRows(stored), 1) * SizeOf(piece.dtype);
  piece.bytes = entry->bytes().subspan(static_cast<size_t>(first_row * row_bytes),
                                       static_cast<size_t>(rows * row_bytes));
  if (first_row > 0) absl::StrAppend(&piece.label, "[", first_row, ":]");
  const int64_t bytes = static_cast<int64_t>(piece.bytes.size());
  taken_bytes_ += bytes;
  used_names_.emplace(name);
  if (taken_.insert(piece.label).second) {
    parameters_ += bytes / SizeOf(piece.dtype);
    bytes_by_dtype_[piece.dtype] += bytes;
    if (backend_ != nullptr) {
      MNEME_RETURN_IF_ERROR(Scan(piece));
    } else {
      pieces_.push_back(piece);
    }
  }
  return piece;
}

absl::Status WeightStore::Scan(const Piece& piece) {
  const WeightScan scan = ScanWeights(*pool_, piece.bytes, piece.dtype);
  if (scan.first_non_finite >= 0) {
    float value = 0;
    const auto size = static_cast<size_t>(SizeOf(piece.dtype));
    WidenTo(piece.bytes.subspan(static_cast<size_t>(scan.first_non_finite) * size, size),
            piece.dtype, &value);
    return absl::InvalidArgumentError(
        absl::StrCat(piece.entry->file->path(), ": tensor \"", piece.label, "\": element ",
                     scan.first_non_finite, " is ", value, ", expected finite weights"));
  }
  const std::string facts = absl::StrCat(piece.label, " ", Name(piece.dtype), " ",
                                         ShapeToString(piece.entry->tensor->shape));
  // A sum, so that the order of taking does not matter; labels keep equal contents apart.
  fingerprint_ += CombineHashes(HashText(facts), scan.hash);
  return absl::OkStatus();
}

std::byte* WeightStore::Place(int64_t bytes) {
  const int64_t offset = used_;
  used_ += (bytes + kWeightAlignment - 1) / kWeightAlignment * kWeightAlignment;
  if (backend_ == nullptr) return nullptr;
  CHECK_LE(used_, memory_.bytes()) << "weights are taken in another order than they were planned";
  return memory_.data() + offset;
}

void WeightStore::Release(const Checkpoint::Entry& entry, std::span<const std::byte> bytes) {
  const int64_t begin = bytes.data() - entry.file->file().bytes().data();
  entry.file->file().Release(begin, begin + static_cast<int64_t>(bytes.size()));
}

void WeightStore::Done(const Piece& piece) {
  if (backend_ == nullptr) return;
  Release(piece);  // the copy is in backend memory
  if (progress_) progress_(taken_bytes_, planned_bytes_);
}

absl::StatusOr<PackedMatrix> WeightStore::Pack(const Piece& piece, DType dtype, int out, int in) {
  return PackBytes(piece, piece.bytes, dtype, out, in);
}

absl::StatusOr<PackedMatrix> WeightStore::PackBytes(const Piece& piece,
                                                    std::span<const std::byte> bytes, DType dtype,
                                                    int out, int in) {
  const Backend* sizes = backend_ != nullptr ? backend_ : planning_backend_;
  const int64_t packed_bytes =
      sizes != nullptr ? sizes->PackedBytes(dtype, out, in) : int64_t{out} * in * SizeOf(dtype);
  std::byte* place = Place(packed_bytes);
  if (backend_ == nullptr) return PackedMatrix{nullptr, dtype, out, in};

  // Backends read elements, so what is stored at an odd place, or widened, is copied first.
  std::vector<std::byte> aligned;
  const std::byte* data = bytes.data();
  if (dtype != piece.dtype) {
    aligned.resize(static_cast<size_t>(out) * in * sizeof(float));
    WidenTo(bytes, piece.dtype, reinterpret_cast<float*>(aligned.data()));
    data = aligned.data();
  } else if (reinterpret_cast<uintptr_t>(data) % SizeOf(dtype) != 0) {
    aligned.assign(bytes.begin(), bytes.end());
    data = aligned.data();
  }
  const PackedMatrix packed =
      backend_->PackMatrix(TensorView{const_cast<std::byte*>(data), dtype, Shape{out, in}}, place);
  Done(piece);
  return packed;
}

absl::StatusOr<PackedMatrix> WeightStore::MatrixAs(absl::string_view name, Shape stored) {
  MNEME_ASSIGN_OR_RETURN(const Piece piece, Take(name, stored, 0, StoredRows(stored)));
  const auto out = static_cast<int>(stored[0]);
  return Pack(piece, piece.dtype, out, static_cast<int>(stored.elements() / out));
}

absl::StatusOr<PackedMatrix> WeightStore::MatrixRows(absl::string_view name, int total_rows, int in,
                                                     int first_row, int rows) {
  MNEME_ASSIGN_OR_RETURN(const Piece piece, Take(name, Shape{total_rows, in}, first_row, rows));
  return Pack(piece, piece.dtype, rows, in);
}

absl::StatusOr<PackedMatrix> WeightStore::MatrixOfRows(absl::string_view name, int total_rows,
                                                       int in, std::span<const int> rows) {
  MNEME_ASSIGN_OR_RETURN(const Piece piece, Take(name, Shape{total_rows, in}, 0, total_rows));
  std::vector<std::byte> bytes;
  if (backend_ != nullptr) {
    const size_t row_bytes = static_cast<size_t>(in) * static_cast<size_t>(SizeOf(piece.dtype));
    for (const int row : rows) {
      if (row < 0) {
        bytes.resize(bytes.size() + row_bytes);
        continue;
      }
      const auto from = piece.bytes.subspan(static_cast<size_t>(row) * row_bytes, row_bytes);
      bytes.insert(bytes.end(), from.begin(), from.end());
    }
  }
  return PackBytes(piece, bytes, piece.dtype, static_cast<int>(rows.size()), in);
}

absl::StatusOr<PackedMatrix> WeightStore::MatrixColumns(absl::string_view name, int out,
                                                        int total_columns, int first_column,
                                                        int columns) {
  MNEME_ASSIGN_OR_RETURN(const Piece piece, Take(name, Shape{out, total_columns}, 0, out));
  std::vector<std::byte> bytes;
  if (backend_ != nullptr) {
    const size_t element = static_cast<size_t>(SizeOf(piece.dtype));
    const size_t stored = std::min(columns, total_columns - first_column);
    for (int row = 0; row < out; ++row) {
      const size_t first = static_cast<size_t>(row) * total_columns + first_column;
      const auto from = piece.bytes.subspan(first * element, stored * element);
      bytes.insert(bytes.end(), from.begin(), from.end());
      bytes.resize(bytes.size() + (columns - stored) * element);
    }
  }
  return PackBytes(piece, bytes, piece.dtype, out, columns);
}

absl::StatusOr<PackedMatrix> WeightStore::TransposedColumns(absl::string_view name, int in,
                                                            int total_out, int first_column,
                                                            int out) {
  MNEME_ASSIGN_OR_RETURN(const Piece piece, Take(name, Shape{in, total_out}, 0, in));
  std::vector<std::byte> bytes;
  if (backend_ != nullptr) {
    const auto element = static_cast<size_t>(SizeOf(piece.dtype));
    bytes.resize(static_cast<size_t>(out) * in * element);
    constexpr int kBlock = 64;  // columns at a time, so that rows of both sides stay in the cache
    for (int block = 0; block < out; block += kBlock) {
      for (int row = 0; row < in; ++row) {
        const std::byte* from =
            piece.bytes.data() + (static_cast<size_t>(row) * total_out + first_column) * element;
        for (int column = block; column < std::min(block + kBlock, out); ++column) {
          std::memcpy(bytes.data() + (static_cast<size_t>(column) * in + row) * element,
                      from + column * element, element);
        }
      }
    }
  }
  return PackBytes(piece, bytes, piece.dtype, out, in);
}

absl::StatusOr<std::vector<PackedMatrix>> WeightStore::MatrixGroup(
    std::span<const std::string> names, int out, int in) {
  bool equal = true;
  for (const std::string& name : names) {
    const Checkpoint::Entry* first = checkpoint_.Find(names[0]);
    const Checkpoint::Entry* entry = checkpoint_.Find(name);
    equal &= first == nullptr || entry == nullptr || first->tensor->dtype == entry->tensor->dtype;
  }
  std::vector<PackedMatrix> group;
  for (const std::string& name : names) {
    MNEME_ASSIGN_OR_RETURN(const Piece piece, Take(name, Shape{out, in}, 0, out));
    MNEME_ASSIGN_OR_RETURN(const PackedMatrix packed,
                           Pack(piece, equal ? piece.dtype : DType::kF32, out, in));
    group.push_back(packed);
  }
  return group;
}

absl::StatusOr<TensorView> WeightStore::Table(absl::string_view name, int rows, int columns) {
  MNEME_ASSIGN_OR_RETURN(const Piece piece, Take(name, Shape{rows, columns}, 0, rows));
  std::byte* place = Place(static_cast<int64_t>(piece.bytes.size()));
  if (backend_ != nullptr) {
    backend_->CopyFromHost(place, piece.bytes.data(), static_cast<int64_t>(piece.bytes.size()));
    Done(piece);
  }
  return TensorView{place, piece.dtype, Shape{rows, columns}};
}

absl::StatusOr<TensorView> WeightStore::FloatGroup(std::span<const std::string> names, Shape stored,
                                                   WeightInit) {
  std::vector<Piece> pieces;
  for (const std::string& name : names) {
    MNEME_ASSIGN_OR_RETURN(Piece piece, Take(name, stored, 0, StoredRows(stored)));
    pieces.push_back(std::move(piece));
  }
  const auto bytes = stored.elements() * int64_t{SizeOf(DType::kF32)};
  std::byte* place = Place(bytes * static_cast<int64_t>(names.size()));
  std::byte* at = place;
  for (const Piece& piece : pieces) {
    if (backend_ == nullptr) break;
    backend_->CopyFromHost(at, Widened(piece.bytes, piece.dtype).data(), bytes);
    Done(piece);
    at += bytes;
  }
  return TensorView{place, DType::kF32, {static_cast<int64_t>(names.size()), stored.elements()}};
}

absl::StatusOr<std::vector<float>> WeightStore::Values(absl::string_view name, Shape stored,
                                                       WeightInit) {
  MNEME_ASSIGN_OR_RETURN(const Piece piece, Take(name, stored, 0, StoredRows(stored)));
  if (backend_ == nullptr) return std::vector<float>(static_cast<size_t>(stored.elements()));
  std::vector<float> values = Widened(piece.bytes, piece.dtype);
  Done(piece);
  return values;
}

absl::Status WeightStore::Expect(absl::string_view name, std::span<const float> values) {
  const auto count = static_cast<int64_t>(values.size());
  MNEME_ASSIGN_OR_RETURN(const Piece piece, Take(name, Shape{count}, 0, count));
  const float tolerance = piece.dtype == DType::kF32   ? 1e-5f
                          : piece.dtype == DType::kF16 ? 0x1p-10f
                                                       : 0x1p-7f;
  const std::vector<float> stored = Widened(piece.bytes, piece.dtype);
  for (size_t i = 0; i < stored.size(); ++i) {
    if (std::abs(stored[i] - values[i]) <= tolerance * std::abs(values[i])) continue;
    return absl::InvalidArgumentError(absl::StrCat(piece.entry->file->path(), ": tensor \"", name,
                                                   "\": element ", i, " is ", stored[i],
                                                   ", expected ", values[i]));
  }
  Done(piece);
  return absl::OkStatus();
}

absl::StatusOr<TensorView> WeightStore::Constant(std::span<const float> values) {
  const int64_t bytes = static_cast<int64_t>(values.size_bytes());
  std::byte* place = Place(bytes);
  if (backend_ != nullptr) backend_->CopyFromHost(place, values.data(), bytes);
  return TensorView{place, DType::kF32, Shape{static_cast<int64_t>(values.size())}};
}

absl::StatusOr<TensorView> WeightStore::ConstantOf(DType dtype, std::span<const double> values) {
  if (dtype != DType::kF64) {
    CHECK(dtype == DType::kF32) << "constants of " << Name(dtype);
    return Constant(std::vector<float>(values.begin(), values.end()));
  }
  const int64_t bytes = static_cast<int64_t>(values.size_bytes());
  std::byte* place = Place(bytes);
  if (backend_ != nullptr) backend_->CopyFromHost(place, values.data(), bytes);
  return TensorView{place, DType::kF64, Shape{static_cast<int64_t>(values.size())}};
}

absl::StatusOr<TensorView> WeightStore::Reserve(DType dtype, Shape shape) {
  return TensorView{Place(shape.elements() * SizeOf(dtype)), dtype, shape};
}

std::vector<std::string> WeightStore::Unused() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : checkpoint_.entries()) {
    if (!used_names_.contains(name) && !ignored_.contains(name)) names.push_back(name);
  }
  return names;
}

std::string WeightStore::dtypes() const {
  std::vector<std::pair<int64_t, DType>> sorted;
  for (const auto& [dtype, bytes] : bytes_by_dtype_) sorted.emplace_back(bytes, dtype);
  std::sort(sorted.rbegin(), sorted.rend());
  std::string text;
  for (const auto& [bytes, dtype] : sorted) {
    absl::StrAppend(&text, text.empty() ? "" : "+", Name(dtype));
  }
  return text;
}

}  // namespace mneme
