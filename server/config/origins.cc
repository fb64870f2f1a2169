#include "server/config/origins.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

bool HasOnly(absl::string_view text, absl::string_view others) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [others](char c) {
    return absl::ascii_isalnum(c) || absl::StrContains(others, c);
  });
}

bool IsHost(absl::string_view host) {
  if (!absl::StartsWith(host, "[")) return HasOnly(host, "-._");
  return absl::EndsWith(host, "]") && HasOnly(host.substr(1, host.size() - 2), ":.");
}

absl::StatusOr<std::string> ParseOrigin(absl::string_view text) {
  const absl::Status error = absl::InvalidArgumentError(absl::StrCat(
      "\"", text,
      "\" is no origin, expected scheme://host or scheme://host:port, without a path, or * alone "
      "for all"));
  const std::string origin = absl::AsciiStrToLower(text);
  const std::vector<absl::string_view> parts = absl::StrSplit(origin, absl::MaxSplits("://", 1));
  if (parts.size() != 2) return error;
  const absl::string_view scheme = parts[0];
  absl::string_view host = parts[1];
  int port = 0;
  const size_t colon = host.rfind(':');
  if (colon != absl::string_view::npos && !absl::EndsWith(host, "]")) {
    const absl::string_view digits = host.substr(colon + 1);
    if (!std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit) ||
        !absl::SimpleAtoi(digits, &port) || port < 1 || port > 65535) {
      return error;
    }
    host = host.substr(0, colon);
  }
  if (!HasOnly(scheme, "+-.") || !absl::ascii_isalpha(scheme[0]) || !IsHost(host)) return error;
  if ((scheme == "http" && port == 80) || (scheme == "https" && port == 443)) port = 0;
  return absl::StrCat(scheme, "://", host, port == 0 ? "" : absl::StrCat(":", port));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseOrigins(absl::string_view text) {
  std::vector<std::string> origins;
  if (text.empty()) return origins;
  if (text == "*") return std::vector<std::string>{"*"};
  for (const absl::string_view entry : absl::StrSplit(text, ',')) {
    MNEME_ASSIGN_OR_RETURN(std::string origin, ParseOrigin(absl::StripAsciiWhitespace(entry)));
    origins.push_back(std::move(origin));
  }
  return origins;
}

}  // namespace mneme
