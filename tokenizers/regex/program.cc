#include "tokenizers/regex/program.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "tokenizers/unicode/code_point.h"

namespace mneme {
namespace {

// Steps that a text may cost: patterns in use need some ten for each byte.
constexpr int64_t kStepsPerByte = 256, kFreeSteps = 1 << 20;
// A step takes a few nanoseconds.
constexpr int64_t kStepsPerUnit = 8, kStepsPerReport = 1 << 16;

}  // namespace

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

absl::Status PatternProgram::FindAll(absl::string_view text, WorkMeter& meter,
                                     MatchSink sink) const {
  return Search(*this, text, meter).Run(sink);
}

}  // namespace mneme
