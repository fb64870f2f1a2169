#include "server/http/http_routes.h"

#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace mneme {
namespace {

// The part of the path that the pattern's braces stand for, "" for a pattern without; nullopt if
// the path does not fit.
std::optional<std::string> MatchPattern(absl::string_view pattern, absl::string_view path) {
  const size_t brace = pattern.find('{');
  if (brace == absl::string_view::npos) {
    if (pattern == path) return "";
    return std::nullopt;
  }
  const absl::string_view prefix = pattern.substr(0, brace);
  if (!absl::StartsWith(path, prefix) || path.size() == prefix.size()) return std::nullopt;
  return std::string(path.substr(prefix.size()));
}

}  // namespace

HttpRoutes::Match HttpRoutes::Find(absl::string_view method, absl::string_view path) const {
  Match match;
  for (const HttpRoute& route : routes_) {
    std::optional<std::string> argument = MatchPattern(route.pattern, path);
    if (!argument.has_value()) continue;
    if (route.method == method || (route.method == "GET" && method == "HEAD")) {
      match.route = &route;
      match.argument = *std::move(argument);
      return match;
    }
    absl::StrAppend(&match.allowed, match.allowed.empty() ? "" : ", ", route.method,
                    route.method == "GET" ? ", HEAD" : "");
  }
  return match;
}

}  // namespace mneme
