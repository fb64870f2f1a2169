#include "base/json_text.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/mapped_file.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

constexpr int kMaxDepth = 32;
constexpr size_t kMaxFileBytes = 64 << 20;
constexpr absl::string_view kNonFinite[] = {"-Infinity", "Infinity", "NaN"};

// transformers 5 writes {"__float__": "Infinity"} where it once wrote Infinity. Such an object
// becomes the string that the literal becomes.
void UnwrapNonFinite(nlohmann::json& object) {
  if (object.size() != 1 || !object.contains("__float__")) return;
  const nlohmann::json name = object["__float__"];
  const auto* const end = std::end(kNonFinite);
  if (name.is_string() && std::find(std::begin(kNonFinite), end, name.get<std::string>()) != end) {
    object = name;
  }
}

// Puts Python's three literals in quotes. `added` are the places of the quotes in what is returned.
std::string QuoteNonFinite(absl::string_view text, std::vector<size_t>& added) {
  std::string out;
  out.reserve(text.size());
  bool in_string = false;
  for (size_t i = 0; i < text.size();) {
    if (in_string) {
      if (text[i] == '\\' && i + 1 < text.size()) {
        out.push_back(text[i++]);  // what it escapes may be a quotation mark
      } else {
        in_string = text[i] != '"';
      }
    } else if (text[i] == '"') {
      in_string = true;
    } else {
      bool replaced = false;
      for (const absl::string_view literal : kNonFinite) {
        if (!absl::StartsWith(text.substr(i), literal)) continue;
        added.push_back(out.size());
        added.push_back(out.size() + 1 + literal.size());
        absl::StrAppend(&out, "\"", literal, "\"");
        i += literal.size();
        replaced = true;
        break;
      }
      if (replaced) continue;
    }
    out.push_back(text[i++]);
  }
  return out;
}

// Reads a text for the place of its first error only.
class ErrorFinder {
 public:
  using json = nlohmann::json;

  explicit ErrorFinder(absl::string_view text) : text_(text) {}
  const JsonError& error() const { return error_; }

  bool null() { return true; }
  bool boolean(bool) { return true; }
  bool number_integer(json::number_integer_t) { return true; }
  bool number_unsigned(json::number_unsigned_t) { return true; }
  bool number_float(json::number_float_t, const json::string_t&) { return true; }
  bool string(json::string_t&) { return true; }
  bool binary(json::binary_t&) { return true; }
  bool start_object(size_t) { return true; }
  bool key(json::string_t&) { return true; }
  bool end_object() { return true; }
  bool start_array(size_t) { return true; }
  bool end_array() { return true; }
  bool parse_error(size_t position, const std::string&, const json::exception&) {
    error_ = ExplainJsonError(text_, position);
    return false;
  }

 private:
  const absl::string_view text_;
  JsonError error_;
};

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

struct LastToken {
  size_t begin = 0;
  bool is_cut_string = false;  // the text ends inside of it
};

// The token that `text`, which is JSON up to there, ends with.
LastToken FindLastToken(absl::string_view text) {
  bool in_string = false;
  size_t string_begin = 0, string_end = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (in_string && text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      (in_string ? string_end : string_begin) = i;
      in_string = !in_string;
    }
  }
  if (in_string || (text.back() == '"' && string_end + 1 == text.size())) {
    return {string_begin, in_string};
  }
  size_t begin = text.size() - 1;
  const auto is_word = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '+' || c == '-' || c == '.';
  };
  while (begin > 0 && is_word(text[begin]) && is_word(text[begin - 1])) --begin;
  return {begin};
}

}  // namespace

std::string LineAndColumn(absl::string_view text, size_t at) {
  const absl::string_view before = text.substr(0, at);
  const size_t line_break = before.rfind('\n');
  const size_t column = line_break == absl::string_view::npos ? at : at - line_break - 1;
  return absl::StrCat(1 + std::count(before.begin(), before.end(), '\n'), ":", column + 1);
}

JsonError ExplainJsonError(absl::string_view text, size_t position) {
  constexpr size_t kShown = 40;
  if (text.empty()) return {0, "it is empty"};
  if (position > text.size()) return {text.size(), "it ends before it is complete"};
  const absl::string_view read = text.substr(0, std::max<size_t>(position, 1));
  const auto last = static_cast<unsigned char>(read.back());
  const LastToken token = FindLastToken(read);
  JsonError error = {.begin = read.size() - 1};
  if (token.is_cut_string && last >= 0x80) {
    error.what = absl::StrCat("byte 0x", absl::Hex(last), " is not UTF-8");
  } else if (token.is_cut_string && (last < 0x20 || last == 0x7f)) {
    error.what = absl::StrCat("control character 0x", absl::Hex(last, absl::kZeroPad2),
                              ", expected \\n, \\t and the like inside of strings");
  } else if (token.is_cut_string) {
    error.what = "an escape that JSON does not have, expected one such as \\n or \\u00e9";
  } else {
    error.begin = token.begin;
    const absl::string_view shown = read.substr(token.begin);
    error.what = absl::StrCat(
        "unexpected ", shown.front() == '"' ? "" : "\"",
        absl::StrReplaceAll(absl::CHexEscape(shown.substr(0, kShown)), {{"\\\"", "\""}}),
        shown.size() > kShown ? "..." : "", shown.front() == '"' ? "" : "\"");
    size_t end = token.begin;
    while (end > 0 && IsSpace(text[end - 1])) --end;
    const char previous = end == 0 ? '\0' : text[end - 1];
    if (previous == ',') {
      absl::StrAppend(&error.what, " after a comma");
    } else if (previous == '{') {
      absl::StrAppend(&error.what, ", expected a key in quotes or \"}\"");
    } else if (previous == ':' || previous == '[') {
      absl::StrAppend(&error.what, ", expected a value");
    } else if (previous != '\0' && shown != "}" && shown != "]") {
      absl::StrAppend(&error.what, ", expected a comma or the end");
    }
  }
  return error;
}

absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text, absl::string_view path) {
  using json = nlohmann::json;
  const auto error = [path](absl::string_view message) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", message));
  };
  if (text.size() > kMaxFileBytes) {
    return error(absl::StrCat(text.size(), " bytes, expected at most ", kMaxFileBytes));
  }
  // The keys of the object that is open at each nesting depth. Indexed rather than pushed and
  // popped: the parser does not report the end of what was dropped.
  std::vector<std::set<std::string>> keys(kMaxDepth + 1);
  std::string wrong;
  const auto inspect = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) {
      if (wrong.empty()) wrong = absl::StrCat("nested deeper than ", kMaxDepth, " levels");
      return false;  // dropped, so that no deep tree is built
    }
    if (event == json::parse_event_t::object_start) {
      keys[depth].clear();
    } else if (event == json::parse_event_t::key) {
      if (!keys[depth - 1].insert(parsed.get<std::string>()).second && wrong.empty()) {
        wrong = absl::StrCat("key ", Shown(parsed), " occurs twice");
      }
    } else if (event == json::parse_event_t::object_end) {
      UnwrapNonFinite(parsed);
    }
    return true;
  };

  std::vector<size_t> added;
  const std::string clean = QuoteNonFinite(text, added);
  json value;
  // The only place of the layer where a library throws; what it says is for programmers.
  try {
    value = json::parse(clean, inspect);
  } catch (const json::exception&) {
    ErrorFinder finder(clean);
    json::sax_parse(clean, &finder);
    const size_t at = finder.error().begin;
    const auto quotes = std::lower_bound(added.begin(), added.end(), at) - added.begin();
    return absl::InvalidArgumentError(
        absl::StrCat(path, ":", LineAndColumn(text, at - static_cast<size_t>(quotes)),
                     ": not valid JSON: ", finder.error().what));
  }
  if (!wrong.empty()) return error(wrong);
  if (!value.is_object()) return error(absl::StrCat("is ", Shown(value), ", expected an object"));
  return value;
}

absl::StatusOr<nlohmann::json> ReadJsonObject(const std::string& path) {
  MNEME_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  return ParseJsonObject(file.text(), path);
}

std::string Shown(const nlohmann::json& value) {
  constexpr size_t kShown = 80;
  const std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return text.size() <= kShown ? text : text.substr(0, kShown) + "...";
}

}  // namespace mneme
