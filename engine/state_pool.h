// All slabs in one allocation. A slot is an index into it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/tensor.h"
#include "models/context_tables.h"
#include "models/model.h"
#include "models/state_codec.h"

namespace mneme {

// Owned and called by one thread. `backend` must outlive it.
class StatePool {
 public:
  // Allocates `slots` slabs and prepares the initial one. RESOURCE_EXHAUSTED where memory lacks.
  static absl::StatusOr<std::unique_ptr<StatePool>> Create(Backend& backend, const Model& model,
                                                           int slots);

  // A slab that holds the initial state; nothing if all are taken. Costs a copy of the eagerly
  // initialised fields, and of a number where sessions are given one in turn
  // (StateInitial::kPhase): the others are read as their initial value until they are written.
  std::optional<int> Acquire();
  // Gives a slab back. Its bytes stay until the slot is acquired again.
  void Release(int slot);
  // The state in the slab `from`, of a session that was fed `tokens` tokens, over that in `to`;
  // both are taken. What nothing was written to is left out: memories whose guard says so, blocks
  // of rows that are not filled yet.
  void Copy(int from, int to, int64_t tokens);

  // Copies fields of the state in a taken slab, of a session that was fed `tokens` tokens.
  absl::Status Read(int slot, int64_t tokens, StateImage& image) const {
    return image.Copy(backend_, slab(slot), tokens);
  }
  // The bytes of a slab that hold the state of a session that was fed `tokens` tokens, in order. Of
  // fields that are not written yet, too, whose bytes mean nothing.
  std::vector<ByteRange> Filled(int slot, int64_t tokens) const;

  int slots() const { return static_cast<int>(taken_.size()); }
  int free_slots() const { return static_cast<int>(free_.size()); }
  int used_slots() const { return slots() - free_slots(); }
  bool taken(int slot) const { return taken_[slot]; }

  Backend& backend() const { return backend_; }
  std::byte* slabs() const { return slabs_.data(); }  // slab 0
  std::byte* slab(int slot) const { return slabs_.data() + slot * slab_bytes_; }
  int64_t slab_bytes() const { return slab_bytes_; }
  int64_t session_bytes() const { return session_bytes_; }  // SessionBytes of the layout
  std::span<const ContextTable> contexts() const { return contexts_.tables(); }
  // Written by Acquire and Copy so far. On a device whose flags the host does not read, memories
  // that they guard count as if all were written.
  int64_t copied_bytes() const { return copied_bytes_; }

 private:
  // A run of eagerly initialised fields, where it lies in a slab and in `initial_`; and `count` - 1
  // more like it, `stride` bytes further in the slab each, as layers have them.
  struct EagerRange {
    int64_t slab_offset;
    int64_t initial_offset;
    int64_t bytes;
    int64_t stride = 0;
    int64_t count = 1;
  };
  // A field of StateInitial::kPhase; the numbers to give lie in `initial_`.
  struct PhaseField {
    int64_t slab_offset;
    int64_t initial_offset;
    int phases;
  };
  // The memories that flags guard, and what lies between them: what Copy takes one by one.
  absl::Status MakePieces(const StateLayout& layout);
  // Joins ranges of one size and distance, of which a device then makes one copy.
  void JoinRanges();

  explicit StatePool(Backend& backend) : backend_(backend) {}

  Backend& backend_;
  int64_t slab_bytes_ = 0, session_bytes_ = 0;
  int64_t fixed_bytes_ = 0;  // of a slab: what a copy takes whatever was fed
  Buffer slabs_;
  ContextTables contexts_;
  Buffer initial_;  // the eager fields of the initial slab, packed; then the phases
  std::vector<EagerRange> eager_;
  std::vector<PhaseField> phases_;
  Buffer pieces_;            // GuardedPiece
  int64_t piece_count_ = 0;  // 0: no flags
  int64_t births_ = 0;
  std::vector<int> free_;  // last out first: its slab may still be in a cache
  std::vector<bool> taken_;
  int64_t copied_bytes_ = 0;
};

}  // namespace mneme
