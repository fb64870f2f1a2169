// Moves numbers between a test and a backend: tensors are made from host values, and what kernels
// wrote is read back as doubles, whatever the backend computes in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "kernels/backend.h"
#include "kernels/tensor.h"

namespace mneme {

class Workbench {
 public:
  explicit Workbench(Backend& backend) : backend_(backend) {}

  Backend& backend() { return backend_; }
  Kernels& kernels() { return backend_.kernels(); }

  // Tensors live as long as the workbench. Values must be representable in the dtype they get;
  // activations get the backend's own.
  TensorView Activations(const std::vector<double>& values, Shape shape);
  TensorView Values(const std::vector<double>& values, Shape shape, DType dtype);
  TensorView Floats(const std::vector<double>& values, Shape shape) {
    return Values(values, shape, DType::kF32);
  }
  TensorView Ints(const std::vector<int>& values, Shape shape);
  TensorView Ints(const std::vector<int>& values) {
    return Ints(values, {static_cast<int64_t>(values.size())});
  }
  TensorView Longs(const std::vector<int64_t>& values);
  PackedMatrix Pack(const std::vector<double>& values, int out_features, int in_features,
                    DType dtype);

  // Outputs, filled with ones bits: NaN, or -1.
  TensorView NewActivations(Shape shape);
  TensorView NewInts(Shape shape);
  TensorView NewLongs(Shape shape);

  // Synchronises first.
  std::vector<double> Read(const TensorView& tensor);
  std::vector<int> ReadInts(const TensorView& tensor);
  std::vector<int64_t> ReadLongs(const TensorView& tensor);

 private:
  TensorView Allocate(DType dtype, Shape shape);

  Backend& backend_;
  std::deque<Tensor> tensors_;
  std::deque<Buffer> buffers_;
};

// A pool of slabs with one field, as the engine lays them out: fields of others before and behind
// it. Everything starts as ones bits, NaN when read by mistake, and what was not meant to be
// written can be checked to be as it was.
class SlabPool {
 public:
  // A field of `memories` times `elements` values of `dtype` in each of `slots` slabs.
  SlabPool(Workbench& bench, int slots, int memories, int64_t elements, DType dtype);

  const StateView& view() const { return view_; }

  void Write(int slot, int memory, const std::vector<double>& values);
  std::vector<double> Read(int slot, int memory);
  // The whole allocation.
  std::vector<std::byte> Bytes();
  // True if no byte outside the memories for which touched(slot, memory) differs from `before`.
  template <typename Touched>
  bool OnlyTouched(const std::vector<std::byte>& before, Touched touched) {
    const std::vector<std::byte> now = Bytes();
    for (size_t i = 0; i < now.size(); ++i) {
      if (now[i] == before[i]) continue;
      const int64_t in_slab = static_cast<int64_t>(i) % view_.slab_bytes - view_.offset;
      const int slot = static_cast<int>(static_cast<int64_t>(i) / view_.slab_bytes);
      if (in_slab < 0 || in_slab >= memories_ * view_.memory_bytes) return false;
      if (!touched(slot, static_cast<int>(in_slab / view_.memory_bytes))) return false;
    }
    return true;
  }

 private:
  Workbench& bench_;
  int memories_;
  int64_t elements_;
  TensorView bytes_;
  StateView view_;
};

}  // namespace mneme
