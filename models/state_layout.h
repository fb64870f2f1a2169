// The fields of a slab. A slab is the whole recurrent state of one session: a fixed number of
// bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/tensor_view.h"

namespace mneme {

// Handle to one field of the slab. Layers keep the handle, never an address, so that the pool is
// free to place, copy, save and restore slabs. Name, dtype and shape make a slab readable by
// others.
struct StateField {
  std::string name;  // "layers.3.memory"
  DType dtype = DType::kF32;
  Shape shape;         // outermost dimension: memories
  int64_t offset = 0;  // bytes from the start of a slab
  // Fields of new sessions either hold the initial slab's bytes (false) or anything at all, because
  // the kernels read a memory that was never written as its initial value (true). The latter cost
  // nothing when a session is created.
  bool lazily_initialized = false;
  // Above 0: instead of the initial slab's bytes new sessions hold a number, i32 [1], from 0 to
  // birth_phases - 1, given to them in turn.
  int birth_phases = 0;

  int64_t bytes() const { return shape.elements() * SizeOf(dtype); }
  int64_t memory_bytes() const { return shape.rank == 0 ? bytes() : bytes() / shape[0]; }
};

// Fields in the order they were added, each aligned to 64 bytes. Built once while a model is made.
class StateLayout {
 public:
  // Appends a field and returns its handle.
  StateField Add(absl::string_view name, DType dtype, Shape shape, bool lazily_initialized);

  // The field of what sessions are given of `phases` at their birth, which all layers share: the
  // first call appends it. To be called before other fields of a layer are added, so that those of
  // all layers lie at one distance.
  StateField AddBirthPhase(int phases);

  std::span<const StateField> fields() const { return fields_; }
  int64_t slab_bytes() const { return slab_bytes_; }  // multiple of 64
  // Printed by mneme-inspect and mneme-server --plan: one line per group of equal layers.
  std::string ToString() const;

 private:
  std::vector<StateField> fields_;
  int64_t slab_bytes_ = 0;
};

}  // namespace mneme
