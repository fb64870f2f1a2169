#include "tokenizers/unicode/code_point_table.h"

#include <algorithm>
#include <optional>

namespace mneme {

CodePointTable::CodePointTable(std::span<const uint32_t> runs) {
  // Most blocks lie in one run; of those there is one for each value.
  std::array<std::optional<uint16_t>, 256> uniform;
  size_t next = 0;
  uint8_t value = 0;
  for (char32_t first = 0; first < kCodePoints; first += kBlock) {
    std::array<uint8_t, kBlock> block;
    const bool is_uniform = next == runs.size() || runs[next] >> 8 >= first + kBlock;
    std::optional<uint16_t>& known = uniform[value];
    if (is_uniform && known.has_value()) {
      blocks_[first / kBlock] = *known;
      continue;
    }
    if (is_uniform) {
      block.fill(value);
      known = AddBlock(block);
      blocks_[first / kBlock] = *known;
      continue;
    }
    for (char32_t i = 0; i < kBlock; ++i) {
      if (next < runs.size() && runs[next] >> 8 == first + i) {
        value = static_cast<uint8_t>(runs[next++]);
      }
      block[i] = value;
    }
    blocks_[first / kBlock] = AddBlock(block);
  }
}

uint16_t CodePointTable::AddBlock(const std::array<uint8_t, kBlock>& block) {
  // The last one first: neighbours are alike.
  for (size_t at = values_.size(); at > 0; at -= kBlock) {
    if (std::equal(block.begin(), block.end(),
                   values_.begin() + static_cast<ptrdiff_t>(at - kBlock))) {
      return static_cast<uint16_t>((at - kBlock) >> kShift);
    }
  }
  values_.insert(values_.end(), block.begin(), block.end());
  return static_cast<uint16_t>((values_.size() - kBlock) >> kShift);
}

void CodePointTable::Sort(std::vector<char32_t>& changes) {
  std::sort(changes.begin(), changes.end());
  changes.erase(std::unique(changes.begin(), changes.end()), changes.end());
}

void AppendChanges(std::span<const uint32_t> runs, std::vector<char32_t>& changes) {
  for (const uint32_t run : runs) changes.push_back(run >> 8);
}

}  // namespace mneme
