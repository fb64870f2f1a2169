#include "models/context_tables.h"

#include <utility>

#include "base/status_macros.h"

namespace mneme {

absl::StatusOr<ContextTables> ContextTables::Create(Backend& backend, const StateLayout& layout,
                                                    std::byte* slabs, int slots) {
  ContextTables tables;
  tables.base_ = slabs;
  tables.slab_bytes_ = layout.slab_bytes();
  tables.groups_.assign(layout.groups().begin(), layout.groups().end());
  for (size_t g = 0; g < tables.groups_.size(); ++g) {
    const int64_t blocks = tables.groups_[g].blocks();
    std::vector<int64_t> offsets;
    offsets.reserve(static_cast<size_t>(slots * blocks));
    for (int64_t slot = 0; slot < slots; ++slot) {
      for (int64_t block = 0; block < blocks; ++block) {
        offsets.push_back(slot * layout.slab_bytes() +
                          layout.BlockOffset(static_cast<int>(g), block));
      }
    }
    MNEME_ASSIGN_OR_RETURN(Tensor memory, Tensor::Allocate(backend, DType::kI64, {slots, blocks}));
    backend.CopyFromHost(memory.view().data, offsets.data(), memory.view().bytes());
    tables.tables_.push_back({.base = slabs, .offsets = memory.view()});
    tables.memory_.push_back(std::move(memory));
    tables.offsets_.push_back(std::move(offsets));
  }
  return tables;
}

int64_t ContextTables::bytes(const StateLayout& layout) {
  int64_t entries = 0;
  for (const ContextGroup& group : layout.groups()) entries += group.blocks();
  return entries * SizeOf(DType::kI64);
}

int64_t SessionBytes(const StateLayout& layout) {
  return layout.slab_bytes() + ContextTables::bytes(layout);
}

std::vector<ByteRange> ContextTables::Filled(int slot, int64_t tokens) const {
  std::vector<ByteRange> ranges;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const ContextGroup& group = groups_[g];
    const int64_t filled = group.filled_blocks(tokens);
    for (int64_t block = 0; block < filled; ++block) {
      const int64_t begin =
          offsets_[g][static_cast<size_t>(slot * group.blocks() + block)] - slot * slab_bytes_;
      if (!ranges.empty() && ranges.back().end == begin) {
        ranges.back().end += group.block_bytes;
      } else {
        ranges.push_back({begin, begin + group.block_bytes});
      }
    }
  }
  return ranges;
}

int64_t ContextTables::CopyFilled(Backend& backend, int from, int to, int64_t tokens) const {
  int64_t copied = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const ContextGroup& group = groups_[g];
    const int64_t* source = offsets_[g].data() + from * group.blocks();
    const int64_t* target = offsets_[g].data() + to * group.blocks();
    const int64_t filled = group.filled_blocks(tokens);
    for (int64_t block = 0; block < filled;) {
      // As many as lie one behind the other on both sides.
      int64_t count = 1;
      while (block + count < filled &&
             source[block + count] == source[block] + count * group.block_bytes &&
             target[block + count] == target[block] + count * group.block_bytes) {
        ++count;
      }
      backend.Copy(base_ + target[block], base_ + source[block], count * group.block_bytes);
      copied += count * group.block_bytes;
      block += count;
    }
  }
  return copied;
}

}  // namespace mneme
