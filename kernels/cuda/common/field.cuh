// A field of every session's slab, for devices.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/tensor_view.h"

namespace mneme::cuda {

// A StateView for devices.
struct Field {
  std::byte* base = nullptr;
  int64_t slab_bytes = 0, memory_bytes = 0;

  Field() = default;
  explicit Field(const StateView& view)
      : base(view.base == nullptr ? nullptr : view.base + view.offset),
        slab_bytes(view.slab_bytes),
        memory_bytes(view.memory_bytes) {}
  template <typename T>
  __device__ T* At(int slot, int memory) const {
    return reinterpret_cast<T*>(base + slot * slab_bytes + memory * memory_bytes);
  }
};

}  // namespace mneme::cuda
