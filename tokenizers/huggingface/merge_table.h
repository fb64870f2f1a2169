// The merges of a BPE model, by what they merge.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mneme {

// Open addressing. After it is filled any thread may call Find.
class MergeTable {
 public:
  static constexpr uint32_t kNoRank = UINT32_MAX;
  struct Merge {
    uint32_t rank = kNoRank;  // the lowest comes first; kNoRank: the two do not merge
    int32_t id = -1;          // what they become
  };

  // For at most `count` merges.
  explicit MergeTable(size_t count = 0);

  // The later of two for the same pair counts.
  void Set(int32_t left, int32_t right, Merge merge);

  // Asks for the memory that Set of the pair will look at, as TokenTable does.
  void Prefetch(int32_t left, int32_t right) const {
    __builtin_prefetch(&slots_[HomeOf(Pair(left, right))]);
  }

  Merge Find(int32_t left, int32_t right) const { return slots_[SlotOf(Pair(left, right))].merge; }

 private:
  static constexpr uint64_t kFree = UINT64_MAX;  // ids are not negative
  struct Slot {
    uint64_t pair = kFree;
    Merge merge;
  };

  static uint64_t Pair(int32_t left, int32_t right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  }
  size_t HomeOf(uint64_t pair) const { return (pair * factor_) >> shift_; }
  // Where `pair` is, or the free slot where it would be.
  size_t SlotOf(uint64_t pair) const {
    size_t at = HomeOf(pair);
    while (slots_[at].pair != pair && slots_[at].pair != kFree) at = (at + 1) & (slots_.size() - 1);
    return at;
  }

  std::vector<Slot> slots_;  // their number is a power of two
  uint64_t factor_ = 1;      // of multiplicative hashing
  int shift_ = 0;
};

}  // namespace mneme
