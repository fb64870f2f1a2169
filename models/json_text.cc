#include "models/json_text.h"

#include <set>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/mapped_file.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

constexpr int kMaxDepth = 32;
constexpr size_t kMaxFileBytes = 64 << 20;

// Puts Python's three literals in quotes.
std::string QuoteNonFinite(absl::string_view text) {
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
      for (const absl::string_view literal : {"-Infinity", "Infinity", "NaN"}) {
        if (!absl::StartsWith(text.substr(i), literal)) continue;
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

}  // namespace

absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text, absl::string_view path) {
  using json = nlohmann::json;
  const auto error = [path](absl::string_view message) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", message));
  };
  if (text.size() > kMaxFileBytes) {
    return error(absl::StrCat(text.size(), " bytes, expected at most ", kMaxFileBytes));
  }
  // By nesting depth, the keys of the object that is open there. Indexed rather than pushed and
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
    }
    return true;
  };

  const std::string clean = QuoteNonFinite(text);
  json value;
  // The only place of the layer where a library throws: the exception is what says where.
  try {
    value = json::parse(clean, inspect);
  } catch (const json::exception& exception) {
    return error(absl::StrCat(
        "not valid JSON: ", absl::CHexEscape(absl::string_view(exception.what()).substr(0, 200))));
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
