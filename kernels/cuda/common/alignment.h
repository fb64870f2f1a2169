// Whether data can be read 16 bytes at a time, as vectors of loads, bulk copies and tensor cores
// want it. What is absent is aligned.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/field.cuh"
#include "kernels/tensor_view.h"

namespace mneme::cuda {

inline bool IsAligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }
inline bool IsAligned(const TensorView& tensor) { return IsAligned(tensor.data); }
inline bool IsAligned(const PackedMatrix& matrix) { return IsAligned(matrix.data); }
// Every memory of every slab.
inline bool IsAligned(const Field& field) {
  return IsAligned(field.base) && (field.slab_bytes | field.memory_bytes) % 16 == 0;
}
inline bool IsAligned(const StateView& view) { return IsAligned(Field(view)); }

template <typename... All>
bool AreAligned(const All&... all) {
  return (IsAligned(all) && ...);
}

}  // namespace mneme::cuda
