// Strings of bytes, looked up by what a text begins with.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace mneme {

// Made once, immutable. A walk takes one step for each byte of `text` that some entry goes on with.
class ByteTrie {
 public:
  static constexpr int32_t kNone = -1;

  struct Entry {
    absl::string_view key;  // only read while the trie is made; empty ones are left out
    int32_t value = 0;      // not negative
  };
  // The first of two entries with the same key counts.
  explicit ByteTrie(std::vector<Entry> entries);
  ByteTrie() : ByteTrie(std::vector<Entry>()) {}

  struct Match {
    size_t bytes = 0;  // 0: no entry is what `text` begins with
    int32_t value = kNone;
  };
  // The longest entry that `text` begins with. `steps` grows by the bytes looked at.
  Match Longest(absl::string_view text, int64_t& steps) const;
  Match Longest(absl::string_view text) const {
    int64_t steps = 0;
    return Longest(text, steps);
  }

  // Calls `visit(bytes, value)` for every entry that `text` begins with, the shortest first.
  // `steps` grows by the bytes looked at.
  template <typename Visit>
  void ForEachPrefix(absl::string_view text, Visit&& visit, int64_t& steps) const {
    if (text.empty()) return;
    uint32_t at = root_[static_cast<uint8_t>(text[0])];
    size_t depth = 1;
    for (; at != 0; ++depth) {
      const Node& node = nodes_[at];
      if (node.value != kNone) visit(depth, node.value);
      if (depth == text.size()) break;
      at = Child(node, static_cast<uint8_t>(text[depth]));
    }
    steps += static_cast<int64_t>(depth);
  }

  // Whether some entry begins with `byte`.
  bool Begins(uint8_t byte) const { return root_[byte] != 0; }

 private:
  struct Node {
    uint32_t first_child = 0;  // in labels_ and targets_, sorted by label
    uint32_t children = 0;
    int32_t value = kNone;
  };

  uint32_t Child(const Node& node, uint8_t label) const;

  std::array<uint32_t, 256> root_ = {};  // node by first byte; 0: none
  std::vector<Node> nodes_;              // 0 is nobody's child
  std::vector<uint8_t> labels_;
  std::vector<uint32_t> targets_;
};

}  // namespace mneme
