#include "tokenizers/regex/set_syntax.h"

#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "tokenizers/unicode/code_point.h"

namespace mneme {
namespace {

bool HasLetters(const CharacterSet& set) {
  for (char32_t c = 'a'; c <= 'z'; ++c) {
    if (set.Contains(c) || set.Contains(c - 0x20)) return true;
  }
  return false;
}

}  // namespace

bool IsAsciiLetter(char32_t c) {
  return c < 0x80 && absl::ascii_isalpha(static_cast<unsigned char>(c));
}
char32_t AsciiLower(char32_t c) { return c >= 'A' && c <= 'Z' ? c | 0x20 : c; }

absl::StatusOr<std::optional<char32_t>> SetSyntax::AddEscape(PatternFlags flags, bool in_class,
                                                             CharacterSet& set) {
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
        return Unsupported(absl::StrCat("an escape \"", pattern_.substr(begin, at_ - begin), "\""));
      }
      literal = c;
  }
  if (absl::Status status = AddRange(*literal, *literal, flags, set); !status.ok()) return status;
  return literal;
}

absl::StatusOr<char32_t> SetSyntax::HexNumber(bool four_digits) {
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
  if (!braces && !four_digits && value >= 0x80) return Unsupported("\\xHH for a byte beyond ASCII");
  return value;
}

absl::Status SetSyntax::AddProperty(bool negated, CharacterSet& set) {
  const size_t end = pattern_.find('}', at_);
  if (!Take("{") || end == absl::string_view::npos) return Unsupported("a property without braces");
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

absl::StatusOr<CharacterSet> SetSyntax::Class(PatternFlags flags) {
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

absl::Status SetSyntax::ClassItem(PatternFlags flags, size_t begin, CharacterSet& set) {
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

absl::StatusOr<std::optional<char32_t>> SetSyntax::ClassCharacter(PatternFlags flags,
                                                                  CharacterSet& set) {
  if (Peek() == '\\') return AddEscape(flags, /*in_class=*/true, set);
  const char32_t c = TakeCharacter();
  if (absl::Status status = AddRange(c, c, flags, set); !status.ok()) return status;
  return c;
}

absl::Status SetSyntax::AddRange(char32_t first, char32_t last, PatternFlags flags,
                                 CharacterSet& set) {
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

}  // namespace mneme
