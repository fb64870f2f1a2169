#include "server/jinja/text_methods.h"

#include <string.h>  // memmem

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/jinja/operators.h"

namespace mneme::jinja {
namespace {

constexpr absl::string_view kMethods[] = {
    "strip",        "lstrip",       "rstrip",     "upper", "lower",   "title",
    "capitalize",   "startswith",   "endswith",   "split", "replace", "find",
    "removeprefix", "removesuffix", "splitlines", "count", "join"};

bool BeginsCharacter(char c) { return (c & 0xc0) != 0x80; }

std::string Strip(absl::string_view text, bool left, bool right, absl::string_view characters) {
  std::array<bool, 256> stripped{};
  for (const char c : characters) stripped[static_cast<uint8_t>(c)] = true;
  const auto strips = [&](char c) {
    return characters.empty() ? absl::ascii_isspace(c) : stripped[static_cast<uint8_t>(c)];
  };
  while (left && !text.empty() && strips(text.front())) text.remove_prefix(1);
  while (right && !text.empty() && strips(text.back())) text.remove_suffix(1);
  return std::string(text);
}

std::string Title(std::string text, bool first_word_only) {
  bool in_word = false;
  bool any = false;
  for (char& c : text) {
    const bool letter = absl::ascii_isalpha(c) || (c & 0x80) != 0;
    const bool upper = first_word_only ? !any : !in_word;
    c = upper && letter ? absl::ascii_toupper(c) : absl::ascii_tolower(c);
    in_word = letter;
    any = true;
  }
  return text;
}

absl::StatusOr<Value> Split(absl::string_view text, const std::vector<Value>& arguments,
                            RenderBudget& budget) {
  int64_t left = arguments.size() > 1 && arguments[1].is_int()
                     ? arguments[1].integer()
                     : std::numeric_limits<int64_t>::max();
  if (left < 0) left = std::numeric_limits<int64_t>::max();
  ListBuilder parts(budget);
  if (arguments.empty() || !arguments[0].is_text() || arguments[0].text().empty()) {
    // At runs of white space, of which there is none at the ends.
    size_t at = 0;
    while (true) {
      while (at < text.size() && absl::ascii_isspace(text[at])) ++at;
      if (at >= text.size()) return parts.Finish();
      size_t end = at;
      while (end < text.size() && !absl::ascii_isspace(text[end])) ++end;
      if (left-- == 0) end = text.size();
      MNEME_RETURN_IF_ERROR(parts.AddText(text.substr(at, end - at)));
      at = end;
    }
  }
  const std::string& separator = arguments[0].text();
  while (true) {
    const size_t at = left-- > 0 ? FindText(text, separator) : absl::string_view::npos;
    MNEME_RETURN_IF_ERROR(parts.AddText(text.substr(0, at)));
    if (at == absl::string_view::npos) return parts.Finish();
    text.remove_prefix(at + separator.size());
  }
}

// Any of a list, as Python takes a tuple.
absl::StatusOr<bool> BeginsOrEnds(absl::string_view name, absl::string_view text,
                                  const Value& affix, RenderBudget& budget) {
  if (affix.is_list()) {
    for (const Value& one : affix.list()) {
      MNEME_ASSIGN_OR_RETURN(const bool fits, BeginsOrEnds(name, text, one, budget));
      if (fits) return true;
    }
    return false;
  }
  MNEME_ASSIGN_OR_RETURN(const Value part, AsText(affix, budget));
  MNEME_RETURN_IF_ERROR(budget.StepOver(part.text()));
  return name == "startswith" ? absl::StartsWith(text, part.text())
                              : absl::EndsWith(text, part.text());
}

int64_t Count(absl::string_view text, absl::string_view part) {
  int64_t count = 0;
  for (size_t at = FindText(text, part); !part.empty() && at != absl::string_view::npos;
       at = FindText(text, part, at + part.size())) {
    ++count;
  }
  return count;
}

absl::StatusOr<Value> JoinWith(const std::string& separator, const Value& value,
                               RenderBudget& budget) {
  MNEME_ASSIGN_OR_RETURN(const Value list, Elements(value, budget));
  TextBuilder out(budget);
  for (size_t i = 0; i < list.list().size(); ++i) {
    if (i > 0) MNEME_RETURN_IF_ERROR(out.Append(separator));
    MNEME_RETURN_IF_ERROR(budget.Step());
    MNEME_RETURN_IF_ERROR(out.AppendValue(list.list()[i]));
  }
  return out.Finish();
}

}  // namespace

bool IsTextMethod(absl::string_view name) {
  return std::find(std::begin(kMethods), std::end(kMethods), name) != std::end(kMethods);
}

absl::StatusOr<Value> CallTextMethod(absl::string_view name, const Value& self,
                                     const std::vector<Value>& arguments, RenderBudget& budget) {
  const std::string& text = self.text();
  MNEME_RETURN_IF_ERROR(budget.StepOver(text));
  const Value first = arguments.empty() ? Value() : arguments[0];
  if (name == "join" && !arguments.empty()) return JoinWith(text, first, budget);
  if (name == "startswith" || name == "endswith") {
    if (arguments.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(name, " needs an argument"));
    }
    MNEME_ASSIGN_OR_RETURN(const bool fits, BeginsOrEnds(name, text, first, budget));
    return Value(fits);
  }
  if (name == "split") return Split(text, arguments, budget);
  if (name == "splitlines") {
    absl::string_view whole = text;
    if (absl::EndsWith(whole, "\n")) whole.remove_suffix(1);
    return text.empty() ? budget.NewList({}) : Split(whole, {Value("\n")}, budget);
  }
  MNEME_ASSIGN_OR_RETURN(const Value shown, first.is_none() ? Value("") : AsText(first, budget));
  const std::string& argument = shown.text();
  if (name == "strip") return budget.Text(Strip(text, true, true, argument));
  if (name == "lstrip") return budget.Text(Strip(text, true, false, argument));
  if (name == "rstrip") return budget.Text(Strip(text, false, true, argument));
  if (name == "upper") return budget.Text(absl::AsciiStrToUpper(text));
  if (name == "lower") return budget.Text(absl::AsciiStrToLower(text));
  if (name == "title") return budget.Text(Title(text, false));
  if (name == "capitalize") return budget.Text(Title(text, true));
  if (arguments.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(name, " needs an argument"));
  }
  if (name == "find") {
    const size_t at = FindText(text, argument);
    if (at == absl::string_view::npos) return Value(int64_t{-1});
    return Value(CharacterCount(absl::string_view(text).substr(0, at)));
  }
  if (name == "count") return Value(Count(text, argument));
  if (name == "removeprefix") {
    return absl::StartsWith(text, argument) ? budget.Text(text.substr(argument.size())) : self;
  }
  if (name == "removesuffix") {
    return absl::EndsWith(text, argument)
               ? budget.Text(text.substr(0, text.size() - argument.size()))
               : self;
  }
  if (arguments.size() < 2) return absl::InvalidArgumentError("replace needs two arguments");
  const int64_t times = arguments.size() > 2 && arguments[2].is_int() ? arguments[2].integer() : -1;
  MNEME_ASSIGN_OR_RETURN(const Value to, AsText(arguments[1], budget));
  return ReplaceText(text, argument, to.text(), times, budget);
}

absl::StatusOr<Value> ReplaceText(absl::string_view text, absl::string_view from,
                                  absl::string_view to, int64_t times, RenderBudget& budget) {
  TextBuilder out(budget);
  while (!from.empty() && times-- != 0) {
    const size_t at = FindText(text, from);
    if (at == absl::string_view::npos) break;
    MNEME_RETURN_IF_ERROR(out.Append(text.substr(0, at)));
    MNEME_RETURN_IF_ERROR(out.Append(to));
    text.remove_prefix(at + from.size());
  }
  MNEME_RETURN_IF_ERROR(out.Append(text));
  return out.Finish();
}

size_t FindText(absl::string_view text, absl::string_view needle, size_t from) {
  if (from > text.size()) return absl::string_view::npos;
  // Not string_view::find, which looks at the whole needle at every place.
  const void* const found =
      memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  if (found == nullptr) return absl::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

int64_t CharacterCount(absl::string_view text) {
  if (text.empty()) return 0;
  // Whatever comes first is one.
  return 1 + std::count_if(text.begin() + 1, text.end(), BeginsCharacter);
}

size_t CharacterOffset(absl::string_view text, int64_t index) {
  size_t at = 0;
  for (; index > 0 && at < text.size(); --index) {
    ++at;
    while (at < text.size() && !BeginsCharacter(text[at])) ++at;
  }
  return at;
}

absl::StatusOr<Value> Characters(absl::string_view text, RenderBudget& budget) {
  ListBuilder characters(budget);
  while (!text.empty()) {
    const size_t size = CharacterOffset(text, 1);
    MNEME_RETURN_IF_ERROR(characters.AddText(text.substr(0, size)));
    text.remove_prefix(size);
  }
  return characters.Finish();
}

}  // namespace mneme::jinja
