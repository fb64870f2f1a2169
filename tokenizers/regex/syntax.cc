#include "tokenizers/regex/syntax.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "tokenizers/regex/set_syntax.h"

namespace mneme {
namespace {

constexpr int kMaxRepeats = 1000;

class PatternParser : private SetSyntax {
 public:
  explicit PatternParser(absl::string_view pattern) : SetSyntax(pattern) {}

  absl::StatusOr<PatternNode> Parse() {
    if (!IsValidUtf8(pattern_)) return absl::InvalidArgumentError("it is not valid UTF-8");
    auto node = Choice(PatternFlags());
    if (!node.ok()) return node;
    if (at_ < pattern_.size()) return Invalid("\")\" without a \"(\"");
    if (BeginsWithAssertedDots(*node, /*asserted=*/false)) {
      return Unsupported("\".*\" behind an assertion at its beginning");
    }
    return node;
  }

 private:
  absl::StatusOr<PatternNode> Choice(PatternFlags flags) {
    if (++depth_ > kMaxDepth) return Unsupported("groups that deep in one another");
    PatternNode choice{.kind = PatternNode::kChoice};
    // "(?i)" reaches over the alternatives that follow it, so it has to stand before all of them.
    while (absl::StartsWith(pattern_.substr(at_), "(?")) {
      const size_t before = at_;
      at_ += 2;
      PatternFlags changed = flags;
      if (TakeFlags(changed).ok() && Take(")")) {
        flags = changed;
        continue;
      }
      at_ = before;
      break;
    }
    do {
      auto sequence = Sequence(flags);
      if (!sequence.ok()) return sequence;
      choice.children.push_back(*std::move(sequence));
    } while (Take("|"));
    --depth_;
    if (choice.children.size() > 1) return choice;
    PatternNode only = std::move(choice.children[0]);
    return only;
  }

  absl::StatusOr<PatternNode> Sequence(PatternFlags flags) {
    PatternNode sequence;
    char32_t last_letter = 0;  // literal, right before; 0: none
    while (!AtEnd() && Peek() != '|' && Peek() != ')') {
      const size_t begin = at_;
      const char first = Peek();
      if (first == '*' || first == '+' || first == '?') {
        return Invalid("a quantifier of nothing");
      }
      auto atom = Atom(flags);
      if (!atom.ok()) return atom;
      char32_t letter = 0;
      if (flags.ignore_case && at_ == begin + 1 && IsAsciiLetter(static_cast<uint8_t>(first))) {
        letter = AsciiLower(static_cast<uint8_t>(first));
        if (absl::Status status = CheckFolding(last_letter, letter); !status.ok()) return status;
      }
      auto repeated = Quantified(*std::move(atom));
      if (!repeated.ok()) return repeated;
      last_letter = letter;
      sequence.children.push_back(*std::move(repeated));
    }
    return sequence;
  }

  // One character may fold to two letters: U+00DF to "ss", U+FB01 to "fi".
  absl::Status CheckFolding(char32_t first, char32_t second) const {
    for (const char* const pair : {"ss", "ff", "fi", "fl", "st"}) {
      if (first == static_cast<char32_t>(pair[0]) && second == static_cast<char32_t>(pair[1])) {
        return Unsupported(
            absl::StrCat("\"", pair, "\" in any case, for which one character may stand"));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<PatternNode> Atom(PatternFlags flags) {
    const char c = Peek();
    switch (c) {
      case '(':
        return Group(flags);
      case '[': {
        ++at_;
        auto set = Class(flags);
        if (!set.ok()) return set.status();
        return SetNode(*std::move(set));
      }
      case '.': {
        ++at_;
        CharacterSet set;
        if (!flags.dot_is_all) set.Add('\n');
        set.Negate();
        PatternNode dot = SetNode(std::move(set));
        dot.is_dot = true;
        return dot;
      }
      case '^':
        ++at_;
        return PatternNode{.kind = PatternNode::kLineStart};
      case '$':
        ++at_;
        return PatternNode{.kind = PatternNode::kLineEnd};
      case '{':
        return Unsupported("a \"{\" that no backslash precedes");
      case '\\':
        return Escape(flags);
      default: {
        CharacterSet set;
        const char32_t literal = TakeCharacter();
        if (absl::Status status = AddRange(literal, literal, flags, set); !status.ok()) {
          return status;
        }
        return SetNode(std::move(set));
      }
    }
  }

  absl::StatusOr<PatternNode> Group(PatternFlags flags) {
    PatternNode node;
    ++at_;
    if (Take("?")) {
      if (Take("#")) {
        const size_t end = pattern_.find(')', at_);
        if (end == absl::string_view::npos) return Invalid("a comment without an end");
        at_ = end + 1;
        return node;
      }
      if (Take(":")) {
      } else if (Take("=")) {
        node.kind = PatternNode::kAhead;
      } else if (Take("!")) {
        node.kind = PatternNode::kAhead;
        node.negated = true;
      } else if (Take(">")) {
        node.kind = PatternNode::kAtomic;
      } else if (Take("<=")) {
        node.kind = PatternNode::kBehind;
      } else if (Take("<!")) {
        node.kind = PatternNode::kBehind;
        node.negated = true;
      } else if (Take("<")) {
        while (!AtEnd() &&
               (absl::ascii_isalnum(static_cast<unsigned char>(Peek())) || Peek() == '_')) {
          ++at_;
        }
        if (!Take(">")) return Invalid("a group whose name does not end");
      } else {
        if (absl::Status status = TakeFlags(flags); !status.ok()) return status;
        if (Take(")")) return Unsupported("a \"(?i)\" that does not stand first in its group");
        if (!Take(":")) return Unsupported(absl::StrCat("a group \"(?", Next(), "\""));
      }
    } else if (Take("*")) {
      return Unsupported("a group \"(*\"");
    }
    auto inner = Choice(flags);
    if (!inner.ok()) return inner;
    if (!Take(")")) return Invalid("a \"(\" without a \")\"");
    if (node.kind == PatternNode::kSequence) return inner;
    if (node.kind == PatternNode::kBehind) {
      const auto fixed = [](const PatternNode& each) { return FixedLength(each).has_value(); };
      const bool ok = inner->kind == PatternNode::kChoice
                          ? std::all_of(inner->children.begin(), inner->children.end(), fixed)
                          : fixed(*inner);
      if (!ok) return Unsupported("a look-behind of no fixed length");
    }
    node.children.push_back(*std::move(inner));
    return node;
  }

  // Letters of options, up to what follows them.
  absl::Status TakeFlags(PatternFlags& flags) {
    bool on = true;
    while (!AtEnd() && Peek() != ')' && Peek() != ':') {
      if (Peek() == '-' && on) {
        on = false;
      } else if (Peek() == 'i') {
        flags.ignore_case = on;
      } else if (Peek() == 'm') {
        flags.dot_is_all = on;
      } else {
        return Unsupported(absl::StrCat("a group \"(?", Next(), "\""));
      }
      ++at_;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<PatternNode> Quantified(PatternNode atom) {
    bool quantified = false;
    while (true) {
      PatternNode repeat{.kind = PatternNode::kRepeat};
      bool interval = false;
      if (Take("*")) {
      } else if (Take("+")) {
        repeat.min = 1;
      } else if (Take("?")) {
        repeat.max = 1;
      } else if (Peek() == '{') {
        if (absl::Status status = TakeInterval(repeat); !status.ok()) return status;
        interval = true;
      } else {
        return atom;
      }
      if (quantified) return Unsupported("a quantifier of a quantifier");
      quantified = true;
      const bool asserts =
          atom.kind == PatternNode::kChoice
              ? std::any_of(atom.children.begin(), atom.children.end(), IsAssertion)
              : IsAssertion(atom);
      if (asserts) return Unsupported("a quantifier of an assertion");
      if (atom.kind != PatternNode::kSet && CanMatchNothing(atom) &&
          !(repeat.min == 0 && repeat.max == 1)) {
        return Unsupported("a repeat of what can match nothing");
      }
      if (interval) {
        if (Peek() == '?') {
          if (repeat.max == repeat.min) return Unsupported("a quantifier \"{n}?\"");
          ++at_;
          repeat.greed = PatternNode::kLazy;
        }
      } else if (Take("?")) {
        repeat.greed = PatternNode::kLazy;
      } else if (Take("+")) {
        repeat.greed = PatternNode::kPossessive;
      }
      repeat.children.push_back(std::move(atom));
      atom = std::move(repeat);
      // "{1,3}+" repeats the repeat.
      if (interval && Peek() == '+' && atom.greed == PatternNode::kGreedy) {
        if (atom.min == 0) return Unsupported("a repeat of what can match nothing");
        ++at_;
        PatternNode outer{.kind = PatternNode::kRepeat, .min = 1};
        outer.children.push_back(std::move(atom));
        atom = std::move(outer);
      }
    }
  }

  static bool IsAssertion(const PatternNode& node) {
    switch (node.kind) {
      case PatternNode::kSet:
      case PatternNode::kChoice:
      case PatternNode::kRepeat:
      case PatternNode::kAtomic:
        return false;
      case PatternNode::kSequence:
        return node.children.size() == 1 && IsAssertion(node.children[0]);
      default:
        return true;
    }
  }

  // Oniguruma takes a ".*" that comes first for an anchor at a line's start, as trying it later in
  // the line is in vain. With an assertion before it that is not so, and yet it does.
  static bool BeginsWithAssertedDots(const PatternNode& node, bool asserted) {
    switch (node.kind) {
      case PatternNode::kSequence:
        for (const PatternNode& child : node.children) {
          if (!IsAssertion(child)) return BeginsWithAssertedDots(child, asserted);
          asserted = true;
        }
        return false;
      case PatternNode::kChoice:
        return std::any_of(node.children.begin(), node.children.end(), [&](const PatternNode& c) {
          return BeginsWithAssertedDots(c, asserted);
        });
      case PatternNode::kRepeat: {
        const PatternNode& child = node.children[0];
        if (child.kind != PatternNode::kSet) return BeginsWithAssertedDots(child, asserted);
        return asserted && child.is_dot && !node.max.has_value() &&
               node.greed != PatternNode::kLazy;
      }
      case PatternNode::kAtomic:
        return BeginsWithAssertedDots(node.children[0], asserted);
      default:
        return false;
    }
  }

  absl::Status TakeInterval(PatternNode& repeat) {
    ++at_;
    const auto number = [this]() -> std::optional<int> {
      if (!absl::ascii_isdigit(static_cast<unsigned char>(Peek()))) return std::nullopt;
      int value = 0;
      while (absl::ascii_isdigit(static_cast<unsigned char>(Peek()))) {
        value = std::min(value * 10 + (Peek() - '0'), kMaxRepeats + 1);
        ++at_;
      }
      return value;
    };
    const std::optional<int> least = number();
    repeat.min = least.value_or(0);
    repeat.max = least;
    if (Take(",")) {
      repeat.max = number();
      if (!least.has_value() && !repeat.max.has_value()) return Unsupported("a quantifier \"{,}\"");
    } else if (!least.has_value()) {
      return Unsupported("a \"{\" that no backslash precedes");
    }
    if (!Take("}")) return Unsupported("a \"{\" that no backslash precedes");
    if (repeat.min > kMaxRepeats || repeat.max.value_or(0) > kMaxRepeats) {
      return Unsupported(absl::StrCat("a quantifier of more than ", kMaxRepeats));
    }
    if (repeat.max.has_value() && *repeat.max < repeat.min) {
      return Unsupported("a quantifier whose second number is the smaller");
    }
    if (repeat.max == 0) return Unsupported("a quantifier \"{0}\"");
    return absl::OkStatus();
  }

  absl::StatusOr<PatternNode> Escape(PatternFlags flags) {
    switch (Peek(1)) {
      case 'A':
        at_ += 2;
        return PatternNode{.kind = PatternNode::kTextStart};
      case 'z':
        at_ += 2;
        return PatternNode{.kind = PatternNode::kTextEnd};
      case 'Z':
        at_ += 2;
        return PatternNode{.kind = PatternNode::kLastLineEnd};
      case 'b':
      case 'B': {
        PatternNode node{.kind = PatternNode::kWordBoundary};
        node.negated = Peek(1) == 'B';
        at_ += 2;
        return node;
      }
      default:
        break;
    }
    CharacterSet set;
    if (absl::Status status = AddEscape(flags, /*in_class=*/false, set).status(); !status.ok()) {
      return status;
    }
    return SetNode(std::move(set));
  }

  static PatternNode SetNode(CharacterSet set) {
    PatternNode node{.kind = PatternNode::kSet};
    node.set = std::move(set);
    return node;
  }
};

}  // namespace

absl::StatusOr<PatternNode> ParsePattern(absl::string_view pattern) {
  return PatternParser(pattern).Parse();
}

}  // namespace mneme
