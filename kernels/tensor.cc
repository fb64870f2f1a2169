#include "kernels/tensor.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace mneme {

std::string ShapeToString(std::span<const int64_t> dims) {
  return absl::StrCat("[", absl::StrJoin(dims, ", "), "]");
}

absl::StatusOr<Buffer> Buffer::Allocate(Backend& backend, int64_t bytes) {
  absl::StatusOr<void*> data = backend.Allocate(bytes);
  if (!data.ok()) return data.status();
  return Buffer(backend, *data, bytes);
}

absl::StatusOr<Buffer> Buffer::AllocatePinned(Backend& backend, int64_t bytes) {
  absl::StatusOr<void*> data = backend.AllocatePinned(bytes);
  if (!data.ok()) return data.status();
  return Buffer(backend, *data, bytes);
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(backend_, other.backend_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) backend_->Free(data_);
}

absl::StatusOr<Tensor> Tensor::Allocate(Backend& backend, DType dtype, Shape shape) {
  absl::StatusOr<Buffer> buffer = Buffer::Allocate(backend, shape.elements() * SizeOf(dtype));
  if (!buffer.ok()) return buffer.status();
  Tensor tensor;
  tensor.buffer_ = *std::move(buffer);
  tensor.dtype_ = dtype;
  tensor.shape_ = shape;
  return tensor;
}

}  // namespace mneme
