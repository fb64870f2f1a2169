// A small value for each code point, in two stages: blocks of equal values are kept once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace mneme {

class CodePointTable {
 public:
  // From runs as of tokenizers/unicode/tables.h: takes a fraction of a millisecond.
  explicit CodePointTable(std::span<const uint32_t> runs);
  // From a function that changes its value at `changes` only, in any order; before the first one it
  // is 0.
  template <typename Value>
  static CodePointTable Of(std::vector<char32_t> changes, const Value& value) {
    Sort(changes);
    std::vector<uint32_t> runs;
    runs.reserve(changes.size());
    for (const char32_t c : changes) runs.push_back(c << 8 | uint8_t{value(c)});
    return CodePointTable(runs);
  }

  uint8_t operator[](char32_t c) const {
    return values_[size_t{blocks_[c >> kShift]} << kShift | (c & (kBlock - 1))];
  }

 private:
  static constexpr int kShift = 7;
  static constexpr char32_t kBlock = 1 << kShift, kCodePoints = 0x110000;

  static void Sort(std::vector<char32_t>& changes);
  uint16_t AddBlock(const std::array<uint8_t, kBlock>& block);

  std::array<uint16_t, kCodePoints / kBlock> blocks_;
  std::vector<uint8_t> values_;
};

// Where a table of these runs changes its value.
void AppendChanges(std::span<const uint32_t> runs, std::vector<char32_t>& changes);

}  // namespace mneme
