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
#include "tokenizers/unicode/code_point.h"

namespace mneme {
namespace {

constexpr int kMaxDepth = 64;
constexpr int kMaxRepeats = 1000;

bool IsAsciiLetter(char32_t c) {
  return c < 0x80 && absl::ascii_isalpha(static_cast<unsigned char>(c));
}
char32_t AsciiLower(char32_t c) { return c >= 'A' && c <= 'Z' ? c | 0x20 : c; }

// Options that hold from where they are set to the end of their group.
struct Flags {
  bool ignore_case = false;
  bool dot_is_all = false;
};

class PatternParser {
 public:
  explicit PatternParser(absl::string_view pattern) : pattern_(pattern) {}

  absl::StatusOr<PatternNode> Parse() {
    if (!IsValidUtf8(pattern_)) return absl::InvalidArgumentError("it is not valid UTF-8");
    auto node = Choice(Flags());
    if (!node.ok()) return node;
    if (at_ < pattern_.size()) return Invalid("\")\" without a \"(\"");
    if (BeginsWithAssertedDots(*node, /*asserted=*/false)) {
      return Unsupported("\".*\" behind an assertion at its beginning");
    }
    return node;
  }

 private:
  // --- errors

  std::string Where() const { return absl::StrCat(" at byte ", at_); }
  absl::Status Invalid(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("it has ", what, Where()));
  }
  absl::Status Unsupported(absl::string_view what) const {
    return absl::UnimplementedError(
        absl::StrCat("it has ", what, Where(), ", which is not supported"));
  }

  // --- the text

  bool AtEnd() const { return at_ == pattern_.size(); }
  char Peek(size_t ahead = 0) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }
  // The next character, to show it.
  absl::string_view Next() const {
    return AtEnd() ? "" : pattern_.substr(at_, CodePointAt(pattern_, at_).length);
  }
  bool Take(absl::string_view what) {
    if (!absl::StartsWith(pattern_.substr(at_), what)) return false;
    at_ += what.size();
    return true;
  }
  char32_t TakeCharacter() {
    const CodePoint c = CodePointAt(pattern_, at_);
    at_ += c.length;
    return c.value;
  }

  // --- the grammar

  absl::StatusOr<PatternNode> Choice(Flags flags) {
    if (++depth_ > kMaxDepth) return Unsupported("groups that deep in one another");
    PatternNode choice{.kind = PatternNode::kChoice};
    // "(?i)" reaches over the alternatives that follow it, so it has to stand before all of them.
    while (absl::StartsWith(pattern_.substr(at_), "(?")) {
      const size_t before = at_;
      at_ += 2;
      Flags changed = flags;
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

  absl::StatusOr<PatternNode> Sequence(Flags flags) {
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

  absl::StatusOr<PatternNode> Atom(Flags flags) {
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

  absl::StatusOr<PatternNode> Group(Flags flags) {
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
  absl::Status TakeFlags(Flags& flags) {
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

  // --- escapes and classes

  absl::StatusOr<PatternNode> Escape(Flags flags) {
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

  // Adds what an escape stands for: one character, which is returned, or a set.
  absl::StatusOr<std::optional<char32_t>> AddEscape(Flags flags, bool in_class, CharacterSet& set) {
    const size_t begin = at_;
    ++at_;
    if (AtEnd()) return Invalid("a backslash at its end");
    const char32_t c = TakeCharacter();
    const auto add_set = [&](const auto& add, bool negated) -> std::optional<char32_t> {
      CharacterSet inner;
      add(inner);
      if (negated) inner.Negate();
      set.Add(std::move(inner));
      return std::nullopt;
    };
    std::optional<char32_t> literal;
    switch (c) {
      case 't':
        literal = '\t';
        break;
      case 'n':
        literal = '\n';
        break;
      case 'r':
        literal = '\r';
        break;
      case 'f':
        literal = '\f';
        break;
      case 'v':
        literal = '\v';
        break;
      case 'a':
        literal = '\a';
        break;
      case 'e':
        literal = 0x1B;
        break;
      case 'x':
      case 'u': {
        auto number = HexNumber(c == 'u');
        if (!number.ok()) return number.status();
        literal = *number;
        break;
      }
      case 'd':
      case 'D':
        return add_set([](CharacterSet& s) { s.AddCategories(CategoryBit(GeneralCategory::kNd)); },
                       c == 'D');
      case 's':
      case 'S':
        return add_set([](CharacterSet& s) { s.AddFlag(kWhiteSpaceFlag); }, c == 'S');
      case 'w':
      case 'W':
        if (flags.ignore_case) return Unsupported("\\w in any case");
        return add_set(
            [in_class](CharacterSet& s) {
              s.AddFlag(kPatternWordFlag);
              for (char32_t latin = 0x80; latin < 0x100 && !in_class; ++latin) {
                if (IsPatternWord(latin)) s.Add(latin);
              }
            },
            c == 'W');
      case 'h':
      case 'H':
        return add_set(
            [](CharacterSet& s) {
              s.Add('0', '9');
              s.Add('a', 'f');
              s.Add('A', 'F');
            },
            c == 'H');
      case 'p':
      case 'P': {
        if (flags.ignore_case) return Unsupported("a property in any case");
        CharacterSet inner;
        if (absl::Status status = AddProperty(c == 'P', inner); !status.ok()) return status;
        set.Add(std::move(inner));
        return std::nullopt;
      }
      default:
        if (c >= 0x80 || absl::ascii_isalnum(static_cast<unsigned char>(c))) {
          return Unsupported(
              absl::StrCat("an escape \"", pattern_.substr(begin, at_ - begin), "\""));
        }
        literal = c;
    }
    if (absl::Status status = AddRange(*literal, *literal, flags, set); !status.ok()) return status;
    return literal;
  }

  absl::StatusOr<char32_t> HexNumber(bool four_digits) {
    const bool braces = !four_digits && Take("{");
    const size_t most = braces ? 6 : four_digits ? 4 : 2;
    char32_t value = 0;
    size_t digits = 0;
    while (digits < most && absl::ascii_isxdigit(static_cast<unsigned char>(Peek()))) {
      const char digit = absl::ascii_tolower(static_cast<unsigned char>(Peek()));
      value = value << 4 | static_cast<char32_t>(digit <= '9' ? digit - '0' : digit - 'a' + 10);
      ++digits;
      ++at_;
    }
    if (digits == 0 || (!braces && digits < most) || (braces && !Take("}"))) {
      return Invalid("an incomplete number of a character");
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
      return Invalid("a number that no character has");
    }
    if (!braces && !four_digits && value >= 0x80)
      return Unsupported("\\xHH for a byte beyond ASCII");
    return value;
  }

  absl::Status AddProperty(bool negated, CharacterSet& set) {
    const size_t end = pattern_.find('}', at_);
    if (!Take("{") || end == absl::string_view::npos)
      return Unsupported("a property without braces");
    if (Take("^")) negated = !negated;
    const absl::string_view name = pattern_.substr(at_, end - at_);
    if (const auto categories = CategorySet(name); categories.has_value()) {
      set.AddCategories(*categories);
    } else if (const auto script = ScriptNumber(name); script.has_value()) {
      set.AddScript(*script);
    } else {
      return Unsupported(absl::StrCat("a property \"", Shortened(name, 40), "\""));
    }
    at_ = end + 1;
    if (negated) set.Negate();
    return absl::OkStatus();
  }

  // Reads what follows a "[", with its "]".
  absl::StatusOr<CharacterSet> Class(Flags flags) {
    if (++depth_ > kMaxDepth) return Unsupported("classes that deep in one another");
    CharacterSet set;
    const bool negated = Take("^");
    const size_t begin = at_;
    while (true) {
      if (AtEnd()) return Invalid("a \"[\" without a \"]\"");
      if (Peek() == ']' && at_ > begin) break;
      if (Peek() == '[') {
        if (Peek(1) == ':') return Unsupported("a class \"[:...:]\"");
        ++at_;
        auto inner = Class(flags);
        if (!inner.ok()) return inner;
        set.Add(*std::move(inner));
        continue;
      }
      if (Peek() == '&' && Peek(1) == '&') return Unsupported("an intersection \"&&\" of classes");
      if (absl::Status status = ClassItem(flags, begin, set); !status.ok()) return status;
    }
    ++at_;
    --depth_;
    if (negated) {
      if (flags.ignore_case && HasLetters(set)) {
        return Unsupported("letters in any case in a negated class");
      }
      set.Negate();
    }
    return set;
  }

  static bool HasLetters(const CharacterSet& set) {
    for (char32_t c = 'a'; c <= 'z'; ++c) {
      if (set.Contains(c) || set.Contains(c - 0x20)) return true;
    }
    return false;
  }

  // A character, a range or an escape; `begin` is where the class does.
  absl::Status ClassItem(Flags flags, size_t begin, CharacterSet& set) {
    if (Peek() == '-' && at_ != begin && Peek(1) != ']') {
      return Unsupported("a \"-\" that neither makes a range nor stands at an end of its class");
    }
    CharacterSet single;
    const auto first = ClassCharacter(flags, single);
    if (!first.ok()) return first.status();
    if (Peek() != '-' || Peek(1) == ']' || Peek(1) == '\0') {
      set.Add(std::move(single));
      return absl::OkStatus();
    }
    if (!first->has_value()) return Unsupported("a range that begins with a set");
    ++at_;
    if (Peek() == '[' || (Peek() == '&' && Peek(1) == '&')) return Unsupported("a range to a set");
    CharacterSet ignored;
    const auto last = ClassCharacter(flags, ignored);
    if (!last.ok()) return last.status();
    if (!last->has_value()) return Unsupported("a range to a set");
    if (**last < **first) return Invalid("a range whose end comes before its beginning");
    return AddRange(**first, **last, flags, set);
  }

  absl::StatusOr<std::optional<char32_t>> ClassCharacter(Flags flags, CharacterSet& set) {
    if (Peek() == '\\') return AddEscape(flags, /*in_class=*/true, set);
    const char32_t c = TakeCharacter();
    if (absl::Status status = AddRange(c, c, flags, set); !status.ok()) return status;
    return c;
  }

  // With `ignore_case` also all that folds to one of the characters.
  absl::Status AddRange(char32_t first, char32_t last, Flags flags, CharacterSet& set) {
    set.Add(first, last);
    if (!flags.ignore_case) return absl::OkStatus();
    if (last >= 0x80) {
      const uint32_t caseless = *CategorySet("P") | *CategorySet("Z") | *CategorySet("Nd") |
                                CategoryBit(GeneralCategory::kLo);
      if (first != last || (caseless >> CategoryTable()[first] & 1) == 0) {
        return Unsupported("characters beyond ASCII in any case");
      }
      return absl::OkStatus();
    }
    for (char32_t c = first; c <= last; ++c) {
      if (!IsAsciiLetter(c)) continue;
      set.Add(c ^ 0x20);
      if (AsciiLower(c) == 's') set.Add(0x17F);
      if (AsciiLower(c) == 'k') set.Add(0x212A);
    }
    return absl::OkStatus();
  }

  static PatternNode SetNode(CharacterSet set) {
    PatternNode node{.kind = PatternNode::kSet};
    node.set = std::move(set);
    return node;
  }

  const absl::string_view pattern_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

absl::StatusOr<PatternNode> ParsePattern(absl::string_view pattern) {
  return PatternParser(pattern).Parse();
}

}  // namespace mneme
