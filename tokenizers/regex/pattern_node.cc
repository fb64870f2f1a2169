#include "tokenizers/regex/pattern_node.h"

#include <algorithm>

namespace mneme {

std::optional<int> FixedLength(const PatternNode& node) {
  switch (node.kind) {
    case PatternNode::kSet:
      return 1;
    case PatternNode::kSequence: {
      int length = 0;
      for (const PatternNode& child : node.children) {
        const auto each = FixedLength(child);
        if (!each.has_value()) return std::nullopt;
        length += *each;
      }
      return length;
    }
    case PatternNode::kChoice: {
      const auto length = FixedLength(node.children[0]);
      for (const PatternNode& child : node.children) {
        if (FixedLength(child) != length) return std::nullopt;
      }
      return length;
    }
    case PatternNode::kRepeat: {
      const auto each = FixedLength(node.children[0]);
      if (!each.has_value() || node.max != node.min) return std::nullopt;
      return *each * node.min;
    }
    case PatternNode::kAtomic:
      return FixedLength(node.children[0]);
    default:
      return 0;  // assertions
  }
}

bool CanMatchNothing(const PatternNode& node) {
  const auto can = [](const PatternNode& child) { return CanMatchNothing(child); };
  switch (node.kind) {
    case PatternNode::kSet:
      return false;
    case PatternNode::kSequence:
      return std::all_of(node.children.begin(), node.children.end(), can);
    case PatternNode::kChoice:
      return std::any_of(node.children.begin(), node.children.end(), can);
    case PatternNode::kRepeat:
      return node.min == 0 || can(node.children[0]);
    case PatternNode::kAtomic:
      return can(node.children[0]);
    default:
      return true;  // assertions
  }
}

}  // namespace mneme
