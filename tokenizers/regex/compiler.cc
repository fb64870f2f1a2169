// Makes a PatternProgram of a pattern's tree.
#include <bitset>
#include <utility>

#include "tokenizers/regex/program.h"
#include "tokenizers/regex/syntax.h"

namespace mneme {
namespace {

constexpr size_t kMaxOps = 20000;

}  // namespace

class PatternCompiler {
 public:
  explicit PatternCompiler(PatternProgram& program) : program_(program) {}

  absl::Status Compile(const PatternNode& root) {
    if (absl::Status status = Add(root); !status.ok()) return status;
    Emit({.kind = Op::kAccept});
    program_.first_ = FirstOf(root);
    return absl::OkStatus();
  }

 private:
  using Op = PatternProgram::Op;

  uint32_t Here() const { return static_cast<uint32_t>(program_.ops_.size()); }
  uint32_t Emit(Op op) {
    program_.ops_.push_back(op);
    return Here() - 1;
  }
  void Land(uint32_t op) { program_.ops_[op].target = Here(); }
  uint32_t SetOf(const PatternNode& node) {
    program_.sets_.push_back(node.set);
    return static_cast<uint32_t>(program_.sets_.size() - 1);
  }

  absl::Status Add(const PatternNode& node) {
    if (program_.ops_.size() > kMaxOps) {
      return absl::UnimplementedError("it is too large with its repeats written out");
    }
    switch (node.kind) {
      case PatternNode::kSet:
        Emit({.kind = Op::kSet, .set = SetOf(node)});
        return absl::OkStatus();
      case PatternNode::kSequence:
        for (const PatternNode& child : node.children) {
          if (absl::Status status = Add(child); !status.ok()) return status;
        }
        return absl::OkStatus();
      case PatternNode::kChoice:
        return AddChoice(node, [this](const PatternNode& child) { return Add(child); });
      case PatternNode::kRepeat:
        return AddRepeat(node);
      case PatternNode::kAtomic:
        return AddInner(Op::kAtomic, [&] { return Add(node.children[0]); });
      case PatternNode::kAhead:
        return AddInner(node.negated ? Op::kNotAhead : Op::kAhead,
                        [&] { return Add(node.children[0]); });
      case PatternNode::kBehind:
        return AddInner(node.negated ? Op::kNotAhead : Op::kAhead, [&] {
          const auto add = [this](const PatternNode& child) {
            Emit({.kind = Op::kBack, .min = static_cast<uint32_t>(*FixedLength(child))});
            return Add(child);
          };
          const PatternNode& inner = node.children[0];
          return inner.kind == PatternNode::kChoice ? AddChoice(inner, add) : add(inner);
        });
      case PatternNode::kLineStart:
        return Assert(Op::kLineStart);
      case PatternNode::kLineEnd:
        return Assert(Op::kLineEnd);
      case PatternNode::kTextStart:
        return Assert(Op::kTextStart);
      case PatternNode::kTextEnd:
        return Assert(Op::kTextEnd);
      case PatternNode::kLastLineEnd:
        return Assert(Op::kLastLineEnd);
      case PatternNode::kWordBoundary:
        return Assert(node.negated ? Op::kNotWordBoundary : Op::kWordBoundary);
    }
    return absl::InternalError("a node of no kind");
  }

  absl::Status Assert(Op::Kind kind) {
    Emit({.kind = kind});
    return absl::OkStatus();
  }

  template <typename AddChild>
  absl::Status AddChoice(const PatternNode& node, const AddChild& add) {
    std::vector<uint32_t> jumps;
    for (size_t i = 0; i < node.children.size(); ++i) {
      const bool last = i + 1 == node.children.size();
      const uint32_t split = last ? 0 : Emit({.kind = Op::kSplit});
      if (absl::Status status = add(node.children[i]); !status.ok()) return status;
      if (last) break;
      jumps.push_back(Emit({.kind = Op::kJump}));
      Land(split);
    }
    for (const uint32_t jump : jumps) Land(jump);
    return absl::OkStatus();
  }

  template <typename AddBody>
  absl::Status AddInner(Op::Kind kind, const AddBody& add) {
    const uint32_t op = Emit({.kind = kind});
    if (absl::Status status = add(); !status.ok()) return status;
    Emit({.kind = Op::kAccept});
    Land(op);
    return absl::OkStatus();
  }

  absl::Status AddRepeat(const PatternNode& node) {
    const PatternNode& child = node.children[0];
    if (child.kind == PatternNode::kSet) {
      const bool unbounded = !node.max.has_value();
      Emit({.kind = node.greed == PatternNode::kGreedy ? Op::kRun
                    : node.greed == PatternNode::kLazy ? Op::kLazyRun
                                                       : Op::kFixedRun,
            .set = SetOf(child),
            .min = static_cast<uint32_t>(node.min),
            .max = unbounded ? PatternProgram::kUnbounded : static_cast<uint32_t>(*node.max),
            .remembers = unbounded && node.greed != PatternNode::kLazy && loops_ == 0});
      return absl::OkStatus();
    }
    if (node.greed == PatternNode::kPossessive) {
      return AddInner(Op::kAtomic,
                      [&] { return AddLoop(child, node.min, node.max, /*lazy=*/false); });
    }
    return AddLoop(child, node.min, node.max, node.greed == PatternNode::kLazy);
  }

  // Repetitions that must come are written out, and so are those that may, if they are bounded.
  absl::Status AddLoop(const PatternNode& child, int min, std::optional<int> max, bool lazy) {
    const bool loops = max != 1;
    loops_ += loops ? 1 : 0;
    absl::Status status = AddCopies(child, min, max, lazy);
    loops_ -= loops ? 1 : 0;
    return status;
  }

  absl::Status AddCopies(const PatternNode& child, int min, std::optional<int> max, bool lazy) {
    for (int i = 0; i < min; ++i) {
      if (absl::Status status = Add(child); !status.ok()) return status;
    }
    if (!max.has_value()) {
      const uint32_t enter = Emit({.kind = lazy ? Op::kSplitTo : Op::kSplit});
      if (absl::Status status = Add(child); !status.ok()) return status;
      Emit({.kind = Op::kJump, .target = enter});
      Land(enter);
      return absl::OkStatus();
    }
    std::vector<uint32_t> exits;
    for (int i = min; i < *max; ++i) {
      exits.push_back(Emit({.kind = lazy ? Op::kSplitTo : Op::kSplit}));
      if (absl::Status status = Add(child); !status.ok()) return status;
    }
    for (const uint32_t exit : exits) Land(exit);
    return absl::OkStatus();
  }

  static std::bitset<128> FirstOf(const PatternNode& node) {
    const std::bitset<128> all = ~std::bitset<128>();
    if (CanMatchNothing(node)) return all;
    switch (node.kind) {
      case PatternNode::kSet:
        return node.set.ascii();
      case PatternNode::kChoice: {
        std::bitset<128> first;
        for (const PatternNode& child : node.children) first |= FirstOf(child);
        return first;
      }
      case PatternNode::kSequence: {
        std::bitset<128> first;
        for (const PatternNode& child : node.children) {
          const bool nothing = CanMatchNothing(child);
          // Assertions match nothing, and stand before any character.
          if (child.children.empty() && child.kind != PatternNode::kSet) continue;
          if (child.kind == PatternNode::kAhead || child.kind == PatternNode::kBehind) continue;
          if (!nothing) return first | FirstOf(child);
          if (child.kind != PatternNode::kRepeat) return all;
          first |= FirstOf(child.children[0]);
        }
        return all;
      }
      case PatternNode::kRepeat:
      case PatternNode::kAtomic:
        return FirstOf(node.children[0]);
      default:
        return all;
    }
  }

  PatternProgram& program_;
  int loops_ = 0;  // that what is added lies in
};

absl::StatusOr<PatternProgram> PatternProgram::Compile(absl::string_view pattern) {
  absl::StatusOr<PatternNode> root = ParsePattern(pattern);
  if (!root.ok()) return root.status();
  PatternProgram program;
  program.pattern_ = std::string(pattern);
  if (absl::Status status = PatternCompiler(program).Compile(*root); !status.ok()) return status;
  return program;
}

}  // namespace mneme
