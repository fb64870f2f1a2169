// The tables by which kernels reach what sessions' growing fields hold, and the copies that follow
// from them. The one place that knows where blocks lie: today in their slab, one behind the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/ops/attention.h"
#include "kernels/tensor.h"
#include "models/state_layout.h"

namespace mneme {

// The bytes that a session takes on a device: its slab, and its entries in the tables.
int64_t SessionBytes(const StateLayout& layout);

class ContextTables {
 public:
  ContextTables() = default;  // of no fields

  // Makes the tables of slabs that lie one behind the other, `slabs` being the first of them. Takes
  // memory for the tables alone: bytes(layout) for each slab. RESOURCE_EXHAUSTED where it lacks.
  static absl::StatusOr<ContextTables> Create(Backend& backend, const StateLayout& layout,
                                              std::byte* slabs, int slots);
  // The bytes of a session's entries in the tables.
  static int64_t bytes(const StateLayout& layout);

  // Their order is that of StateField::group.
  std::span<const ContextTable> tables() const { return tables_; }

  // Where the blocks lie that a session of `tokens` tokens has filled, in a slab: in order, those
  // that lie one behind the other as one range.
  std::vector<ByteRange> Filled(int slot, int64_t tokens) const;
  // Copies the blocks that a session of `tokens` tokens has filled, from slot to slot. Returns the
  // bytes.
  int64_t CopyFilled(Backend& backend, int from, int to, int64_t tokens) const;

 private:
  std::byte* base_ = nullptr;
  int64_t slab_bytes_ = 0;
  std::vector<ContextGroup> groups_;
  std::vector<std::vector<int64_t>>
      offsets_;  // of each group: what its table holds, [slots, blocks]
  std::vector<Tensor> memory_;
  std::vector<ContextTable> tables_;
};

}  // namespace mneme
