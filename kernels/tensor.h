// Owners of backend memory, and shapes in words.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/tensor_view.h"

namespace mneme {

// For messages: "[2, 3]".
std::string ShapeToString(std::span<const int64_t> dims);
inline std::string ShapeToString(const Shape& shape) {
  return ShapeToString(std::span(shape.dims, static_cast<size_t>(shape.rank)));
}

// Owns one allocation of a Backend, which must outlive it. Movable, not resizable.
class Buffer {
 public:
  Buffer() = default;
  static absl::StatusOr<Buffer> Allocate(Backend& backend, int64_t bytes);
  static absl::StatusOr<Buffer> AllocatePinned(Backend& backend, int64_t bytes);
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  int64_t bytes() const { return bytes_; }

 private:
  Buffer(Backend& backend, void* data, int64_t bytes)
      : backend_(&backend), data_(data), bytes_(bytes) {}

  Backend* backend_ = nullptr;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

// A Buffer with a dtype and a shape.
class Tensor {
 public:
  Tensor() = default;
  static absl::StatusOr<Tensor> Allocate(Backend& backend, DType dtype, Shape shape);

  TensorView view() const { return {buffer_.data(), dtype_, shape_}; }

 private:
  Buffer buffer_;
  DType dtype_ = DType::kF32;
  Shape shape_;
};

}  // namespace mneme
