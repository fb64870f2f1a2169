// Token sequences that prompts began with, as a radix tree: where they part from each other, and
// where a state is worth being kept.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace mneme {

struct PrefixSnapshot;

// Why a state is wanted behind a prefix; what is listed later goes before what is listed earlier.
enum class PrefixMark : uint8_t {
  kNone,
  kGuess,   // a power of two: another prompt may part somewhere behind it
  kWanted,  // two prompts have parted here, or a message ends
  kAsked,   // a client says so
};

// A position that a prompt is to be cut at.
struct PrefixCut {
  int64_t position = 0;  // tokens in front of it
  PrefixMark mark = PrefixMark::kNone;
};

// A prefix of one prompt or of several. Its tokens are those of its parent and then its own.
struct PrefixNode {
  PrefixNode() = default;
  PrefixNode(const PrefixNode&) = delete;
  PrefixNode& operator=(const PrefixNode&) = delete;
  ~PrefixNode();

  PrefixNode* parent = nullptr;  // null: the root of a space, which has no tokens
  std::vector<int32_t> tokens;
  int64_t end = 0;  // tokens from the root on
  PrefixMark mark = PrefixMark::kNone;
  int users = 0;                             // the node stays as long as there are any
  int awaited = 0;                           // prompts that wait until somebody's state stands here
  std::unique_ptr<PrefixSnapshot> snapshot;  // PrefixCache's

  absl::flat_hash_map<int32_t, std::unique_ptr<PrefixNode>> children;  // by their first token
  std::list<PrefixNode*>::iterator place;                              // PrefixTree's, as the next
  uint64_t name = 0;                                                   // 0: it has none
  const std::string* space = nullptr;                                  // of a root
};

// Bounded: what was used least recently is forgotten first. A node's address stays the same, also
// when another one is put in front of it.
//
// Owned and called by one thread.
class PrefixTree {
 public:
  // `forget` is called for a node with a snapshot that has no users, before it goes.
  PrefixTree(int64_t max_bytes, std::function<void(PrefixNode&)> forget)
      : max_bytes_(max_bytes), forget_(std::move(forget)) {}
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // The node of `tokens` in `space`, in which alone they are compared; with nodes at all cuts from
  // 1 to their number, and, marked kWanted, where they part from what is there. Counts as a use of
  // all of them. Null where they are none, or more than there is room for. The caller adds itself
  // to the users before it inserts more.
  PrefixNode* Insert(absl::string_view space, std::span<const int32_t> tokens,
                     std::span<const PrefixCut> cuts);

  // Nodes that begin a session that is fed `tokens`, of all spaces whose names begin with `owner`
  // and a NUL; parents first.
  std::vector<PrefixNode*> OnPath(absl::string_view owner, std::span<const int32_t> tokens) const;
  // Unless there are users, or nodes behind it.
  void RemoveUnused(PrefixNode& node);
  // The same for the tokens of `node` and then `more`; `node` itself where there are none. That
  // something is fed behind a node is no parting.
  PrefixNode* Extend(PrefixNode& node, std::span<const int32_t> more,
                     std::span<const PrefixCut> cuts);
  // The node of a position on the way to `leaf`, from 1 on, which may be new.
  PrefixNode* Cut(PrefixNode* leaf, int64_t position);

  // Names outlive their nodes, so that whoever has one keeps nothing.
  uint64_t NameOf(PrefixNode& node);
  // Null where the node is gone.
  PrefixNode* Find(uint64_t name) const {
    const auto found = named_.find(name);
    return found == named_.end() ? nullptr : found->second;
  }

  int64_t bytes() const { return bytes_; }

  static PrefixNode* Root(PrefixNode* node);
  // The node on the way to `node` that ends there; null if none does.
  static PrefixNode* EndingAt(PrefixNode* node, int64_t position);
  // What two nodes have in common, which may be one of them; null in different spaces.
  static PrefixNode* Common(PrefixNode* a, PrefixNode* b);

 private:
  PrefixNode* Descend(PrefixNode* start, std::span<const int32_t> tokens);
  PrefixNode* Grow(PrefixNode& start, std::span<const int32_t> tokens,
                   std::span<const PrefixCut> cuts);
  PrefixNode* AddChild(PrefixNode& parent, std::span<const int32_t> tokens);
  // Puts a node in front of `node` that has the first `count` of its tokens.
  PrefixNode* Split(PrefixNode& node, int64_t count);
  void Touch(PrefixNode* leaf);
  void Trim();
  void Remove(PrefixNode& leaf);

  const int64_t max_bytes_;
  const std::function<void(PrefixNode&)> forget_;
  int64_t bytes_ = 0;
  std::map<std::string, std::unique_ptr<PrefixNode>, std::less<>> spaces_;
  // But for roots, by their last use. A parent is used when its child is, and comes before it.
  std::list<PrefixNode*> recent_;
  absl::flat_hash_map<uint64_t, PrefixNode*> named_;
  uint64_t names_ = 0;
};

}  // namespace mneme
