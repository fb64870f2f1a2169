#include "server/jinja/text_methods.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace mneme::jinja {
namespace {

constexpr absl::string_view kMethods[] = {
    "strip",        "lstrip",       "rstrip",     "upper", "lower",   "title",
    "capitalize",   "startswith",   "endswith",   "split", "replace", "find",
    "removeprefix", "removesuffix", "splitlines", "count", "join"};

std::string Strip(absl::string_view text, bool left, bool right, absl::string_view characters) {
  const auto strips = [&](char c) {
    return characters.empty() ? absl::ascii_isspace(c) : absl::StrContains(characters, c);
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

Value Split(absl::string_view text, const std::vector<Value>& arguments) {
  int64_t left = arguments.size() > 1 && arguments[1].is_int()
                     ? arguments[1].integer()
                     : std::numeric_limits<int64_t>::max();
  if (left < 0) left = std::numeric_limits<int64_t>::max();
  List parts;
  if (arguments.empty() || !arguments[0].is_text() || arguments[0].text().empty()) {
    // At runs of white space, of which there is none at the ends.
    size_t at = 0;
    while (true) {
      while (at < text.size() && absl::ascii_isspace(text[at])) ++at;
      if (at >= text.size()) return parts;
      size_t end = at;
      while (end < text.size() && !absl::ascii_isspace(text[end])) ++end;
      if (left-- == 0) end = text.size();
      parts.emplace_back(std::string(text.substr(at, end - at)));
      at = end;
    }
  }
  const std::string& separator = arguments[0].text();
  while (true) {
    const size_t at = left-- > 0 ? text.find(separator) : absl::string_view::npos;
    parts.emplace_back(std::string(text.substr(0, at)));
    if (at == absl::string_view::npos) return parts;
    text.remove_prefix(at + separator.size());
  }
}

std::string Replace(absl::string_view text, absl::string_view from, absl::string_view to,
                    int64_t times) {
  std::string out;
  if (from.empty()) return std::string(text);
  while (times-- != 0) {
    const size_t at = text.find(from);
    if (at == absl::string_view::npos) break;
    absl::StrAppend(&out, text.substr(0, at), to);
    text.remove_prefix(at + from.size());
  }
  return absl::StrCat(out, text);
}

// Any of a list, as Python takes a tuple.
bool BeginsOrEnds(absl::string_view name, absl::string_view text, const Value& affix) {
  if (affix.is_list()) {
    return std::any_of(affix.list().begin(), affix.list().end(),
                       [&](const Value& one) { return BeginsOrEnds(name, text, one); });
  }
  return name == "startswith" ? absl::StartsWith(text, affix.ToText())
                              : absl::EndsWith(text, affix.ToText());
}

}  // namespace

bool IsTextMethod(absl::string_view name) {
  return std::find(std::begin(kMethods), std::end(kMethods), name) != std::end(kMethods);
}

absl::StatusOr<Value> CallTextMethod(absl::string_view name, const std::string& text,
                                     const std::vector<Value>& arguments) {
  const Value first = arguments.empty() ? Value() : arguments[0];
  const std::string argument = first.is_none() ? "" : first.ToText();
  if (name == "strip") return Value(Strip(text, true, true, argument));
  if (name == "lstrip") return Value(Strip(text, true, false, argument));
  if (name == "rstrip") return Value(Strip(text, false, true, argument));
  if (name == "upper") return Value(absl::AsciiStrToUpper(text));
  if (name == "lower") return Value(absl::AsciiStrToLower(text));
  if (name == "title") return Value(Title(text, false));
  if (name == "capitalize") return Value(Title(text, true));
  if (name == "split") return Split(text, arguments);
  if (name == "splitlines") {
    const std::string whole = absl::EndsWith(text, "\n") ? text.substr(0, text.size() - 1) : text;
    return text.empty() ? Value(List()) : Split(whole, {Value("\n")});
  }
  if (arguments.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(name, " needs an argument"));
  }
  if (name == "startswith" || name == "endswith") return Value(BeginsOrEnds(name, text, first));
  if (name == "find") {
    const size_t at = text.find(argument);
    if (at == std::string::npos) return Value(int64_t{-1});
    return Value(static_cast<int64_t>(Characters(text.substr(0, at)).size()));
  }
  if (name == "count") {
    int64_t count = 0;
    for (size_t at = text.find(argument); !argument.empty() && at != std::string::npos;
         at = text.find(argument, at + argument.size())) {
      ++count;
    }
    return Value(count);
  }
  if (name == "removeprefix") {
    return Value(absl::StartsWith(text, argument) ? text.substr(argument.size()) : text);
  }
  if (name == "removesuffix") {
    return Value(absl::EndsWith(text, argument) ? text.substr(0, text.size() - argument.size())
                                                : text);
  }
  if (name == "join") {
    const absl::StatusOr<List> list = Elements(first);
    if (!list.ok()) return list.status();
    std::string out;
    for (size_t i = 0; i < list->size(); ++i) {
      absl::StrAppend(&out, i > 0 ? text : "", (*list)[i].ToText());
    }
    return Value(std::move(out));
  }
  if (arguments.size() < 2) return absl::InvalidArgumentError("replace needs two arguments");
  const int64_t times = arguments.size() > 2 && arguments[2].is_int() ? arguments[2].integer() : -1;
  return Value(Replace(text, argument, arguments[1].ToText(), times));
}

}  // namespace mneme::jinja
