#include "tests/support/workbench.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "kernels/float16.h"
#include "tests/support/random_values.h"

namespace mneme {
namespace {

constexpr std::byte kOnes{0xff};

template <typename T>
void Append(std::vector<std::byte>& bytes, T value) {
  const std::byte* first = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), first, first + sizeof(T));
}

// The bytes of `values` stored as `dtype`.
std::vector<std::byte> Encode(const std::vector<double>& values, DType dtype) {
  std::vector<std::byte> bytes;
  bytes.reserve(values.size() * SizeOf(dtype));
  for (const double value : values) {
    CHECK(value != value || RoundTo(value, dtype) == value)
        << value << " is not a value of " << Name(dtype);
    switch (dtype) {
      case DType::kF64:
        Append(bytes, value);
        break;
      case DType::kF32:
        Append(bytes, static_cast<float>(value));
        break;
      case DType::kBF16:
        Append(bytes, BF16FromF32(static_cast<float>(value)));
        break;
      case DType::kF16:
        Append(bytes, F16FromF32(static_cast<float>(value)));
        break;
      default:
        CHECK(false) << "values of " << Name(dtype);
    }
  }
  return bytes;
}

std::vector<double> Decode(const std::vector<std::byte>& bytes, DType dtype) {
  std::vector<double> values(bytes.size() / SizeOf(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF64) {
      values[i] = reinterpret_cast<const double*>(bytes.data())[i];
    } else if (dtype == DType::kF16) {
      values[i] = F32FromF16(reinterpret_cast<const uint16_t*>(bytes.data())[i]);
    } else if (dtype == DType::kBF16) {
      values[i] = F32FromBF16(reinterpret_cast<const uint16_t*>(bytes.data())[i]);
    } else {
      CHECK(dtype == DType::kF32) << "reading " << Name(dtype);
      values[i] = reinterpret_cast<const float*>(bytes.data())[i];
    }
  }
  return values;
}

}  // namespace

TensorView Workbench::Allocate(DType dtype, Shape shape) {
  absl::StatusOr<Tensor> tensor = Tensor::Allocate(backend_, dtype, shape);
  CHECK_OK(tensor.status());
  tensors_.push_back(*std::move(tensor));
  const TensorView view = tensors_.back().view();
  const std::vector<std::byte> ones(static_cast<size_t>(view.bytes()), kOnes);
  backend_.CopyFromHost(view.data, ones.data(), view.bytes());
  return view;
}

TensorView Workbench::Values(const std::vector<double>& values, Shape shape, DType dtype) {
  CHECK_EQ(static_cast<int64_t>(values.size()), shape.elements());
  const TensorView view = Allocate(dtype, shape);
  const std::vector<std::byte> bytes = Encode(values, dtype);
  backend_.CopyFromHost(view.data, bytes.data(), view.bytes());
  return view;
}

TensorView Workbench::Activations(const std::vector<double>& values, Shape shape) {
  return Values(values, shape, backend_.activation_dtype());
}

TensorView Workbench::Ints(const std::vector<int>& values, Shape shape) {
  CHECK_EQ(static_cast<int64_t>(values.size()), shape.elements());
  const TensorView view = Allocate(DType::kI32, shape);
  backend_.CopyFromHost(view.data, values.data(), view.bytes());
  return view;
}

TensorView Workbench::Longs(const std::vector<int64_t>& values) {
  const TensorView view = NewLongs({static_cast<int64_t>(values.size())});
  backend_.CopyFromHost(view.data, values.data(), view.bytes());
  return view;
}

PackedMatrix Workbench::Pack(const std::vector<double>& values, int out_features, int in_features,
                             DType dtype) {
  CHECK_EQ(static_cast<int64_t>(values.size()), static_cast<int64_t>(out_features) * in_features);
  std::vector<std::byte> bytes = Encode(values, dtype);
  absl::StatusOr<Buffer> buffer =
      Buffer::Allocate(backend_, backend_.PackedBytes(dtype, out_features, in_features));
  CHECK_OK(buffer.status());
  buffers_.push_back(*std::move(buffer));
  return backend_.PackMatrix({bytes.data(), dtype, {out_features, in_features}},
                             buffers_.back().data());
}

TensorView Workbench::NewActivations(Shape shape) {
  return Allocate(backend_.activation_dtype(), shape);
}

TensorView Workbench::NewInts(Shape shape) { return Allocate(DType::kI32, shape); }

TensorView Workbench::NewLongs(Shape shape) { return Allocate(DType::kI64, shape); }

std::vector<double> Workbench::Read(const TensorView& tensor) {
  CHECK_OK(backend_.Synchronize());
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes()));
  backend_.CopyToHost(bytes.data(), tensor.data, tensor.bytes());
  return Decode(bytes, tensor.dtype);
}

std::vector<int> Workbench::ReadInts(const TensorView& tensor) {
  CHECK(tensor.dtype == DType::kI32);
  CHECK_OK(backend_.Synchronize());
  std::vector<int> values(static_cast<size_t>(tensor.shape.elements()));
  backend_.CopyToHost(values.data(), tensor.data, tensor.bytes());
  return values;
}

std::vector<int64_t> Workbench::ReadLongs(const TensorView& tensor) {
  CHECK(tensor.dtype == DType::kI64);
  CHECK_OK(backend_.Synchronize());
  std::vector<int64_t> values(static_cast<size_t>(tensor.shape.elements()));
  backend_.CopyToHost(values.data(), tensor.data, tensor.bytes());
  return values;
}

SlabPool::SlabPool(Workbench& bench, int slots, int memories, int64_t elements, DType dtype)
    : bench_(bench), memories_(memories), elements_(elements) {
  // Fields start at multiples of 64 bytes; the ones around this field are 128 bytes each.
  const int64_t memory_bytes = elements * SizeOf(dtype);
  const int64_t field_bytes = (memories * memory_bytes + 63) / 64 * 64;
  view_.slab_bytes = 128 + field_bytes + 128;
  view_.offset = 128;
  view_.memory_bytes = memory_bytes;
  view_.dtype = dtype;
  // In units of four bytes, for want of a byte tensor on the workbench.
  bytes_ = bench.NewInts({slots * view_.slab_bytes / 4});
  view_.base = static_cast<std::byte*>(bytes_.data);
}

void SlabPool::Write(int slot, int memory, const std::vector<double>& values) {
  CHECK_EQ(static_cast<int64_t>(values.size()), elements_);
  std::vector<std::byte> bytes;
  if (view_.dtype == DType::kU8) {
    for (const double value : values) bytes.push_back(static_cast<std::byte>(value));
  } else {
    bytes = Encode(values, view_.dtype);
  }
  bench_.backend().CopyFromHost(view_.At(slot, memory), bytes.data(),
                                static_cast<int64_t>(bytes.size()));
}

std::vector<double> SlabPool::Read(int slot, int memory) {
  CHECK_OK(bench_.backend().Synchronize());
  std::vector<std::byte> bytes(static_cast<size_t>(view_.memory_bytes));
  bench_.backend().CopyToHost(bytes.data(), view_.At(slot, memory), view_.memory_bytes);
  if (view_.dtype != DType::kU8) return Decode(bytes, view_.dtype);
  std::vector<double> values;
  for (const std::byte byte : bytes) values.push_back(std::to_integer<int>(byte));
  return values;
}

std::vector<std::byte> SlabPool::Bytes() {
  CHECK_OK(bench_.backend().Synchronize());
  std::vector<std::byte> bytes(static_cast<size_t>(bytes_.bytes()));
  bench_.backend().CopyToHost(bytes.data(), bytes_.data, bytes_.bytes());
  return bytes;
}

}  // namespace mneme
