#include "engine/sessions/prefix_tree.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "base/log.h"
#include "engine/sessions/prefix_cache.h"

namespace mneme {
namespace {

// What a node takes beside its tokens, its place in a map and in a list included.
constexpr int64_t kNodeBytes = 256;

int64_t BytesOf(int64_t tokens) { return tokens * static_cast<int64_t>(sizeof(int32_t)); }

void Raise(PrefixNode& node, PrefixMark mark) { node.mark = std::max(node.mark, mark); }

}  // namespace

PrefixNode::~PrefixNode() = default;

// From the leaves on, as a path may have more nodes than a stack has room for.
PrefixTree::~PrefixTree() {
  while (!recent_.empty()) Remove(*recent_.back());
}

PrefixNode* PrefixTree::Insert(absl::string_view space, std::span<const int32_t> tokens,
                               std::span<const PrefixCut> cuts) {
  const auto count = static_cast<int64_t>(tokens.size());
  // Half of the room for one prompt, so that it leaves others beside it.
  if (count == 0 || BytesOf(count) + kNodeBytes > max_bytes_ / 2) return nullptr;
  auto found = spaces_.find(space);
  if (found == spaces_.end()) {
    found = spaces_.emplace(std::string(space), std::make_unique<PrefixNode>()).first;
    found->second->space = &found->first;
    bytes_ += kNodeBytes + static_cast<int64_t>(space.size());
  }
  return Grow(*found->second, tokens, cuts);
}

PrefixNode* PrefixTree::Extend(PrefixNode& node, std::span<const int32_t> more,
                               std::span<const PrefixCut> cuts) {
  if (BytesOf(node.end + static_cast<int64_t>(more.size())) + kNodeBytes > max_bytes_ / 2) {
    return nullptr;
  }
  return Grow(node, more, cuts);
}

PrefixNode* PrefixTree::Grow(PrefixNode& start, std::span<const int32_t> tokens,
                             std::span<const PrefixCut> cuts) {
  PrefixNode* const leaf = tokens.empty() ? &start : Descend(&start, tokens);
  for (const PrefixCut& cut : cuts) {
    if (cut.position >= 1 && cut.position <= leaf->end) {
      Raise(*Cut(leaf, cut.position), cut.mark);
    }
  }
  Touch(leaf);
  ++leaf->users;
  Trim();
  --leaf->users;
  return leaf;
}

std::vector<PrefixNode*> PrefixTree::OnPath(absl::string_view owner,
                                            std::span<const int32_t> tokens) const {
  std::string space(owner);
  space.push_back('\0');
  std::vector<PrefixNode*> path;
  for (auto at = spaces_.lower_bound(space);
       at != spaces_.end() && absl::StartsWith(at->first, space); ++at) {
    const PrefixNode* node = at->second.get();
    std::span<const int32_t> rest = tokens;
    while (!rest.empty()) {
      const auto found = node->children.find(rest.front());
      if (found == node->children.end()) break;
      PrefixNode* const child = found->second.get();
      const size_t count = child->tokens.size();
      if (count > rest.size() ||
          !std::equal(child->tokens.begin(), child->tokens.end(), rest.begin())) {
        break;
      }
      path.push_back(child);
      rest = rest.subspan(count);
      node = child;
    }
  }
  return path;
}

void PrefixTree::RemoveUnused(PrefixNode& node) {
  if (node.users == 0 && node.children.empty()) Remove(node);
}

PrefixNode* PrefixTree::Descend(PrefixNode* start, std::span<const int32_t> tokens) {
  PrefixNode* node = start;
  size_t at = 0;
  while (at < tokens.size()) {
    const auto found = node->children.find(tokens[at]);
    if (found == node->children.end()) {
      const bool goes_on = node == start && node->children.empty();
      if (node->parent != nullptr && !goes_on) Raise(*node, PrefixMark::kWanted);
      return AddChild(*node, tokens.subspan(at));
    }
    PrefixNode* child = found->second.get();
    const std::span<const int32_t> rest = tokens.subspan(at);
    const auto parts =
        std::mismatch(child->tokens.begin(), child->tokens.end(), rest.begin(), rest.end());
    const auto common = parts.first - child->tokens.begin();
    if (parts.first != child->tokens.end()) child = Split(*child, common);
    at += static_cast<size_t>(common);
    node = child;
  }
  Raise(*node, PrefixMark::kWanted);  // another prompt goes on from here, or ends here, too
  return node;
}

PrefixNode* PrefixTree::AddChild(PrefixNode& parent, std::span<const int32_t> tokens) {
  auto made = std::make_unique<PrefixNode>();
  PrefixNode* const node = made.get();
  node->parent = &parent;
  node->tokens.assign(tokens.begin(), tokens.end());
  node->end = parent.end + static_cast<int64_t>(tokens.size());
  recent_.push_front(node);
  node->place = recent_.begin();
  bytes_ += kNodeBytes + BytesOf(static_cast<int64_t>(tokens.size()));
  parent.children[tokens.front()] = std::move(made);
  return node;
}

PrefixNode* PrefixTree::Split(PrefixNode& node, int64_t count) {
  CHECK(count > 0 && count < static_cast<int64_t>(node.tokens.size()));
  auto made = std::make_unique<PrefixNode>();
  PrefixNode* const front = made.get();
  front->parent = node.parent;
  front->tokens.assign(node.tokens.begin(), node.tokens.begin() + count);
  front->end = node.parent->end + count;
  front->place = recent_.insert(node.place, front);
  bytes_ += kNodeBytes;

  std::unique_ptr<PrefixNode>& in_parent = node.parent->children.at(node.tokens.front());
  node.tokens.erase(node.tokens.begin(), node.tokens.begin() + count);
  node.tokens.shrink_to_fit();
  node.parent = front;
  made->children[node.tokens.front()] = std::move(in_parent);
  in_parent = std::move(made);
  return front;
}

PrefixNode* PrefixTree::Cut(PrefixNode* leaf, int64_t position) {
  PrefixNode* node = leaf;
  while (node->parent->end >= position) node = node->parent;
  return node->end == position ? node : Split(*node, position - node->parent->end);
}

uint64_t PrefixTree::NameOf(PrefixNode& node) {
  if (node.name == 0) {
    node.name = ++names_;
    named_[node.name] = &node;
  }
  return node.name;
}

void PrefixTree::Touch(PrefixNode* leaf) {
  for (PrefixNode* node = leaf; node->parent != nullptr; node = node->parent) {
    recent_.splice(recent_.begin(), recent_, node->place);
  }
}

void PrefixTree::Trim() {
  for (auto at = recent_.end(); bytes_ > max_bytes_ && at != recent_.begin();) {
    PrefixNode& node = **--at;
    if (node.users > 0 || !node.children.empty()) continue;
    ++at;  // survives the removal
    Remove(node);
  }
}

void PrefixTree::Remove(PrefixNode& leaf) {
  if (leaf.snapshot != nullptr) forget_(leaf);
  PrefixNode& parent = *leaf.parent;
  bytes_ -= kNodeBytes + BytesOf(static_cast<int64_t>(leaf.tokens.size()));
  recent_.erase(leaf.place);
  named_.erase(leaf.name);
  const int32_t first = leaf.tokens.front();
  parent.children.erase(first);
  if (parent.parent != nullptr || !parent.children.empty()) return;
  const std::string space = *parent.space;
  bytes_ -= kNodeBytes + static_cast<int64_t>(space.size());
  spaces_.erase(space);
}

PrefixNode* PrefixTree::Root(PrefixNode* node) {
  while (node->parent != nullptr) node = node->parent;
  return node;
}

PrefixNode* PrefixTree::EndingAt(PrefixNode* node, int64_t position) {
  while (node->parent != nullptr && node->parent->end >= position) node = node->parent;
  return node->end == position ? node : nullptr;
}

PrefixNode* PrefixTree::Common(PrefixNode* a, PrefixNode* b) {
  while (a != b) {
    PrefixNode*& deeper = a->end >= b->end ? a : b;
    deeper = deeper->parent;
    if (deeper == nullptr) return nullptr;
  }
  return a;
}

}  // namespace mneme
