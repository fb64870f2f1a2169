#include "tokenizers/huggingface/merge_table.h"

#include <bit>

#include "absl/hash/hash.h"

namespace mneme {

MergeTable::MergeTable(size_t count) {
  const size_t slots = std::bit_ceil(count + count / 2 + 2);
  slots_.resize(slots);
  shift_ = 64 - std::countr_zero(slots);
  // Odd, and another one in each run, so that no file can be made whose pairs meet.
  factor_ = absl::HashOf(slots) | 1;
}

void MergeTable::Set(int32_t left, int32_t right, Merge merge) {
  const uint64_t pair = Pair(left, right);
  slots_[SlotOf(pair)] = {pair, merge};
}

}  // namespace mneme
