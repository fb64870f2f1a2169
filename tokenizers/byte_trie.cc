#include "tokenizers/byte_trie.h"

#include <algorithm>

namespace mneme {

ByteTrie::ByteTrie(std::vector<Entry> entries) : nodes_(1) {
  std::erase_if(entries, [](const Entry& entry) { return entry.key.empty(); });
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.key < b.key; });
  const auto same_key = [](const Entry& a, const Entry& b) { return a.key == b.key; };
  entries.erase(std::unique(entries.begin(), entries.end(), same_key), entries.end());
  // Level by level: the children of a node lie side by side, and no key is too deep for the stack.
  struct Open {
    uint32_t node;
    std::span<const Entry> entries;  // those below the node
    size_t depth;                    // bytes that they share
  };
  std::vector<Open> level;
  const auto open_children = [&](std::span<const Entry> rest, size_t depth, auto&& link) {
    while (!rest.empty()) {
      const char label = rest[0].key[depth];
      const auto end = std::find_if(rest.begin(), rest.end(),
                                    [&](const Entry& entry) { return entry.key[depth] != label; });
      const std::span<const Entry> below(rest.begin(), end);
      rest = {end, rest.end()};
      const auto node = static_cast<uint32_t>(nodes_.size());
      nodes_.emplace_back();
      link(static_cast<uint8_t>(label), node);
      level.push_back({node, below, depth + 1});
    }
  };
  open_children(entries, 0, [&](uint8_t label, uint32_t node) { root_[label] = node; });
  while (!level.empty()) {
    for (const Open& open : std::exchange(level, {})) {
      std::span<const Entry> below = open.entries;
      if (below[0].key.size() == open.depth) {
        nodes_[open.node].value = below[0].value;
        below = below.subspan(1);
      }
      nodes_[open.node].first_child = static_cast<uint32_t>(labels_.size());
      open_children(below, open.depth, [&](uint8_t label, uint32_t node) {
        labels_.push_back(label);
        targets_.push_back(node);
      });
      nodes_[open.node].children =
          static_cast<uint32_t>(labels_.size()) - nodes_[open.node].first_child;
    }
  }
}

uint32_t ByteTrie::Child(const Node& node, uint8_t label) const {
  const auto begin = labels_.begin() + node.first_child;
  const auto end = begin + node.children;
  const auto it = std::lower_bound(begin, end, label);
  return it == end || *it != label ? 0 : targets_[it - labels_.begin()];
}

ByteTrie::Match ByteTrie::Longest(absl::string_view text, int64_t& steps) const {
  Match match;
  if (text.empty()) return match;
  uint32_t at = root_[static_cast<uint8_t>(text[0])];
  size_t depth = 1;
  for (; at != 0; ++depth) {
    const Node& node = nodes_[at];
    if (node.value != kNone) match = {depth, node.value};
    if (depth == text.size()) break;
    at = Child(node, static_cast<uint8_t>(text[depth]));
  }
  steps += static_cast<int64_t>(depth);
  return match;
}

}  // namespace mneme
