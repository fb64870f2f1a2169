// Laying out what passes between the kernels of an operation in one block of scratch memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mneme::cuda {

// Hands out consecutive pieces of a block, or counts them.
class ScratchLayout {
 public:
  explicit ScratchLayout(std::byte* base) : base_(base) {}
  template <typename T>
  T* Take(int64_t count) {
    T* const piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + bytes_);
    bytes_ += (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    return piece;
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* const base_;
  int64_t bytes_ = 0;
};

}  // namespace mneme::cuda
