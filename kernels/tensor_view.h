// Plain descriptions of memory: element type, shape, and the two kinds of view that kernels take.
// Free of Abseil so that CUDA sources may include it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace mneme {

enum class DType : uint8_t { kF64, kF32, kBF16, kF16, kI64, kI32, kU16, kU8, kI8 };

constexpr int SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
    case DType::kU16:
      return 2;
    case DType::kU8:
    case DType::kI8:
      return 1;
  }
  return 0;
}

constexpr const char* Name(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "f64";
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kI64:
      return "i64";
    case DType::kI32:
      return "i32";
    case DType::kU16:
      return "u16";
    case DType::kU8:
      return "u8";
    case DType::kI8:
      return "i8";
  }
  return "?";
}

// Up to four dimensions, outermost first. Rank 0 is a scalar.
struct Shape {
  // Not a static member: those are inline variables, which -fno-weak (MnemeTargets.cmake) forbids.
  enum : int { kMaxRank = 4 };

  constexpr Shape() = default;
  constexpr Shape(std::initializer_list<int64_t> list) {
    for (const int64_t dim : list) dims[rank++] = dim;
  }

  constexpr int64_t operator[](int i) const { return dims[i]; }
  constexpr int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dims[i];
    return n;
  }
  friend constexpr bool operator==(const Shape&, const Shape&) = default;

  int rank = 0;
  int64_t dims[kMaxRank] = {};
};

// Row-major, contiguous, not owned. The memory is the backend's that runs the kernel.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;

  bool empty() const { return data == nullptr; }
  int64_t bytes() const { return shape.elements() * SizeOf(dtype); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// One field of every session's slab, e.g. the matrix memories of one layer. Slabs have a fixed size
// and lie in one allocation. At() says on the host where a memory of a slab lies; a device's
// kernels cannot call it and compute the same.
struct StateView {
  std::byte* base = nullptr;  // slab 0
  int64_t slab_bytes = 0;     // distance between slabs
  int64_t offset = 0;         // of the field within a slab
  int64_t memory_bytes = 0;   // distance between the field's memories (outermost dimension)
  DType dtype = DType::kF32;

  std::byte* At(int slot, int memory) const {
    return base + slot * slab_bytes + offset + memory * memory_bytes;
  }
  template <typename T>
  T* as(int slot, int memory) const {
    return reinterpret_cast<T*>(At(slot, memory));
  }
};

// A weight matrix [out_features, in_features] in the layout a backend's Linear() wants; made by
// Backend::PackMatrix. Elements keep the dtype of the checkpoint.
struct PackedMatrix {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int out_features = 0;
  int in_features = 0;
};

}  // namespace mneme
