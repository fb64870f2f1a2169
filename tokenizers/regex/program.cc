#include "tokenizers/regex/program.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "tokenizers/unicode/code_point.h"

namespace mneme {
namespace {

constexpr size_t kMaxOps = 20000;
constexpr uint32_t kUnbounded = std::numeric_limits<uint32_t>::max();

// Steps that a text may cost: patterns in use need some ten for each byte.
constexpr int64_t kStepsPerByte = 256, kFreeSteps = 1 << 20;
// A step takes a few nanoseconds.
constexpr int64_t kStepsPerUnit = 8, kStepsPerReport = 1 << 16;

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
            .max = unbounded ? kUnbounded : static_cast<uint32_t>(*node.max),
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

// One search through one text.
class PatternProgram::Search {
 public:
  Search(const PatternProgram& program, absl::string_view text, WorkMeter& meter)
      : program_(program), text_(text), meter_(meter), memories_(program.ops_.size()) {}

  absl::Status Run(MatchSink sink) {
    size_t at = 0;
    std::optional<size_t> last_end;
    while (at <= text_.size()) {
      const std::optional<Match> match = Find(at);
      if (absl::Status status = Report(); !status.ok()) return status;
      if (!match.has_value()) return absl::OkStatus();
      if (match->begin == match->end && match->end == last_end) {
        // A match of nothing right behind another match is none.
        at = match->end < text_.size() ? match->end + CodePointAt(text_, match->end).length
                                       : text_.size() + 1;
        continue;
      }
      if (absl::Status status = sink(match->begin, match->end); !status.ok()) return status;
      at = match->end;
      last_end = match->end;
    }
    return absl::OkStatus();
  }

 private:
  struct Match {
    size_t begin, end;
  };

  // A place to go on from when what was tried failed. Of a run also how far back (or, if it is
  // lazy, on) it may go.
  struct Choice {
    uint32_t op;
    enum : uint8_t { kGoOn, kShorten, kLengthen } kind;
    uint32_t left = 0;  // characters that a lazy run may still take
    size_t at;
    size_t least = 0;
  };

  // The last finding of a run: itself, and the ends of it, a stretch, from which the rest of the
  // pattern does not match. Neither depends on where the match began. So a pattern that begins with
  // a run does not try each of its characters as a beginning and each as an end.
  struct Memory {
    size_t run_begin = 0, run_end = 0;
    size_t failed_first = 1, failed_last = 0;
  };

  // None also if it was given up on: see Report.
  std::optional<Match> Find(size_t at) {
    for (; at <= text_.size() && ended_.ok(); at += Length(at)) {
      ++steps_;
      if (steps_ >= next_report_ && !Report().ok()) break;
      if (at < text_.size()) {
        const auto byte = static_cast<unsigned char>(text_[at]);
        if (byte < 0x80 && !program_.first_[byte]) continue;
      }
      size_t end = at;
      if (RunFrom(0, end)) return Match{at, end};
    }
    return std::nullopt;
  }

  size_t Length(size_t at) const { return at < text_.size() ? CodePointAt(text_, at).length : 1; }

  // Adds the steps since the last time to the meter, and says why there should be no more.
  absl::Status Report() {
    if (!ended_.ok()) return ended_;
    ended_ = meter_.Add((steps_ - reported_) / kStepsPerUnit);
    reported_ = steps_ - (steps_ - reported_) % kStepsPerUnit;
    const int64_t limit = kFreeSteps + kStepsPerByte * static_cast<int64_t>(text_.size());
    if (ended_.ok() && steps_ > limit) {
      ended_ = absl::InvalidArgumentError(absl::StrCat(
          "the pattern \"", Shortened(program_.pattern_, 200), "\" took more than ", limit,
          " steps on a text of ", text_.size(), " bytes: it tries the same again and again"));
    }
    next_report_ = steps_ + kStepsPerReport;
    return ended_;
  }

  // Runs the program from `op` at `at` up to kAccept, and sets `at` to the end. What it could still
  // try is forgotten.
  bool RunFrom(uint32_t op, size_t& at) {
    const size_t floor = choices_.size();
    const bool found = Execute(op, at, floor);
    choices_.resize(floor);
    return found;
  }

  bool Execute(uint32_t index, size_t& position, size_t floor) {
    size_t at = position;
    while (true) {
      ++steps_;
      if (steps_ >= next_report_ && !Report().ok()) return false;
      const Op& op = program_.ops_[index];
      bool ok = true;
      switch (op.kind) {
        case Op::kSet:
          ok = TakeOne(op.set, at);
          break;
        case Op::kRun: {
          size_t least = at;
          ok = TakeRun(index, least, at);
          if (ok && at > least) choices_.push_back({index, Choice::kShorten, 0, at, least});
          break;
        }
        case Op::kFixedRun: {
          size_t least = at;
          ok = TakeRun(index, least, at);
          break;
        }
        case Op::kLazyRun: {
          uint32_t taken = 0;
          while (taken < op.min && TakeOne(op.set, at)) ++taken;
          steps_ += taken;
          ok = taken == op.min;
          if (ok && op.max > op.min) {
            choices_.push_back({index, Choice::kLengthen,
                                op.max == kUnbounded ? kUnbounded : op.max - op.min, at});
          }
          break;
        }
        case Op::kJump:
          index = op.target;
          continue;
        case Op::kSplit:
          choices_.push_back({op.target, Choice::kGoOn, 0, at});
          break;
        case Op::kSplitTo:
          choices_.push_back({index + 1, Choice::kGoOn, 0, at});
          index = op.target;
          continue;
        case Op::kAtomic:
        case Op::kAhead:
        case Op::kNotAhead: {
          size_t end = at;
          ok = RunFrom(index + 1, end) != (op.kind == Op::kNotAhead);
          if (!ended_.ok()) return false;
          if (ok) {
            if (op.kind == Op::kAtomic) at = end;
            index = op.target;
            continue;
          }
          break;
        }
        case Op::kBack:
          for (uint32_t i = 0; i < op.min && ok; ++i) {
            ok = at > 0;
            if (ok) at = PreviousCodePoint(text_, at);
          }
          break;
        case Op::kAccept:
          position = at;
          return true;
        default:
          ok = Holds(op.kind, at);
      }
      if (ok) {
        ++index;
      } else if (!Backtrack(floor, index, at)) {
        return false;
      }
    }
  }

  // As many characters as there are from `at` on, which then is where they end, or the last of
  // these ends from which the rest may match. `least` is where the shortest run ends; it is `at`
  // before. False if there are too few characters, or if no end will do.
  bool TakeRun(uint32_t index, size_t& least, size_t& at) {
    const Op& op = program_.ops_[index];
    Memory& memory = memories_[index];
    const size_t begin = at;
    // From where on the run is known, if it meets the last one.
    const bool meets = op.remembers && begin < memory.run_end;
    const size_t known = meets ? memory.run_begin : text_.size() + 1;
    uint32_t taken = 0;
    while (taken < op.max) {
      if (at >= known && taken >= op.min) {
        at = memory.run_end;
        break;
      }
      if (!TakeOne(op.set, at)) break;
      if (++taken == op.min) least = at;
    }
    steps_ += taken;
    if (taken < op.min) return false;
    if (!op.remembers) return true;
    if (begin < memory.run_begin || begin >= memory.run_end) {
      memory.run_begin = begin;
      memory.run_end = at;
    }
    if (at < memory.failed_first || at > memory.failed_last) return true;
    if (least >= memory.failed_first) return false;
    at = PreviousCodePoint(text_, memory.failed_first);
    return true;
  }

  // The rest of the pattern does not match from `end` of a run on.
  void Remember(uint32_t index, size_t end) {
    if (!program_.ops_[index].remembers) return;
    Memory& memory = memories_[index];
    const bool goes_on = memory.failed_first <= memory.failed_last && end < memory.failed_first &&
                         PreviousCodePoint(text_, memory.failed_first) == end;
    memory.failed_first = end;
    if (!goes_on) memory.failed_last = end;
  }

  // Goes to the last place where something else can be tried.
  bool Backtrack(size_t floor, uint32_t& index, size_t& at) {
    while (choices_.size() > floor) {
      Choice& choice = choices_.back();
      if (choice.kind == Choice::kGoOn) {
        index = choice.op;
        at = choice.at;
        choices_.pop_back();
        return true;
      }
      index = choice.op + 1;
      if (choice.kind == Choice::kShorten) {
        Remember(choice.op, choice.at);
        if (choice.at == choice.least) {
          choices_.pop_back();
          continue;
        }
        choice.at = PreviousCodePoint(text_, choice.at);
        at = choice.at;
        return true;
      }
      if (TakeOne(program_.ops_[choice.op].set, choice.at)) {
        at = choice.at;
        if (choice.left != kUnbounded && --choice.left == 0) choices_.pop_back();
        return true;
      }
      choices_.pop_back();
    }
    return false;
  }

  bool TakeOne(uint32_t set, size_t& at) const {
    if (at == text_.size()) return false;
    const CodePoint c = CodePointAt(text_, at);
    if (!program_.sets_[set].Contains(c.value)) return false;
    at += c.length;
    return true;
  }

  bool IsWordAt(size_t at) const {
    return at < text_.size() && IsPatternWord(CodePointAt(text_, at).value);
  }

  bool Holds(Op::Kind assertion, size_t at) const {
    const bool start = at == 0;
    const bool end = at == text_.size();
    switch (assertion) {
      case Op::kLineStart:
        return start || (!end && text_[at - 1] == '\n');
      case Op::kLineEnd:
        return end || text_[at] == '\n';
      case Op::kTextStart:
        return start;
      case Op::kTextEnd:
        return end;
      case Op::kLastLineEnd:
        return end || (text_[at] == '\n' && at + 1 == text_.size());
      default: {
        const bool before = !start && IsWordAt(PreviousCodePoint(text_, at));
        return (before != IsWordAt(at)) == (assertion == Op::kWordBoundary);
      }
    }
  }

  const PatternProgram& program_;
  const absl::string_view text_;
  WorkMeter& meter_;
  std::vector<Choice> choices_;
  std::vector<Memory> memories_;  // by operation
  int64_t steps_ = 0, reported_ = 0, next_report_ = kStepsPerReport;
  absl::Status ended_;
};

absl::StatusOr<PatternProgram> PatternProgram::Compile(absl::string_view pattern) {
  absl::StatusOr<PatternNode> root = ParsePattern(pattern);
  if (!root.ok()) return root.status();
  PatternProgram program;
  program.pattern_ = std::string(pattern);
  if (absl::Status status = PatternCompiler(program).Compile(*root); !status.ok()) return status;
  return program;
}

absl::Status PatternProgram::FindAll(absl::string_view text, WorkMeter& meter,
                                     MatchSink sink) const {
  return Search(*this, text, meter).Run(sink);
}

}  // namespace mneme
