#include "server/http/url.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/status_payload.h"

namespace mneme {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

bool PercentDecode(absl::string_view text, std::string& out) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out.push_back(text[i]);
      continue;
    }
    if (i + 2 >= text.size()) return false;
    const int high = HexDigit(text[i + 1]);
    const int low = HexDigit(text[i + 2]);
    if (high < 0 || low < 0) return false;
    out.push_back(static_cast<char>(16 * high + low));
    i += 2;
  }
  return true;
}

absl::StatusOr<std::map<std::string, std::string>> ParseQuery(absl::string_view query) {
  std::map<std::string, std::string> parameters;
  for (const absl::string_view part : absl::StrSplit(query, '&', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    std::string name;
    std::string value;
    if (!PercentDecode(pair.first, name) || !PercentDecode(pair.second, value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the query \"", absl::CHexEscape(part), "\" has a broken % in it"));
    }
    if (!parameters.emplace(name, std::move(value)).second) {
      return FieldError(absl::CHexEscape(name), "is in the query twice");
    }
  }
  return parameters;
}

}  // namespace mneme
