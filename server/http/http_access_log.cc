#include "server/http/http_access_log.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log_fields.h"

namespace mneme {
namespace {

// Paths that somebody asks for every few seconds.
constexpr absl::string_view kProbes[] = {"/health", "/ping", "/metrics"};

// The most that is shown of what clients send.
constexpr size_t kMaxMethodBytes = 32;
constexpr size_t kMaxPathBytes = 512;

// As it stands in a URL: nothing in it ends a line or a field, or speaks to a terminal.
std::string Escaped(absl::string_view text, size_t max_bytes) {
  std::string escaped;
  for (const char c : text.substr(0, max_bytes)) {
    if (absl::ascii_isgraph(c) && !absl::StrContains("\"%\\", absl::string_view(&c, 1))) {
      escaped.push_back(c);
    } else {
      absl::StrAppend(&escaped, "%",
                      absl::AsciiStrToUpper(
                          absl::StrCat(absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2))));
    }
  }
  if (text.size() > max_bytes) escaped.append("...");
  return escaped;
}

bool IsOrdinaryProbe(const HttpExchange& exchange) {
  return std::count(std::begin(kProbes), std::end(kProbes), exchange.request.route) > 0 &&
         exchange.complete && (exchange.status == 200 || exchange.status == 503);
}

bool HasFailed(const HttpExchange& exchange) {
  return exchange.status >= 400 || !exchange.complete;
}

bool IsWanted(HttpAccessLog::Which which, const HttpExchange& exchange) {
  switch (which) {
    case HttpAccessLog::Which::kAll:
      return true;
    case HttpAccessLog::Which::kNoProbes:
      return !IsOrdinaryProbe(exchange);
    case HttpAccessLog::Which::kFailed:
      return HasFailed(exchange) && !IsOrdinaryProbe(exchange);
    default:
      return false;
  }
}

}  // namespace

void HttpAccessLog::Add(const std::string& api, const HttpExchange& exchange) const {
  // Only what is the server's own fault is worth a warning.
  const LogSeverity severity = exchange.status == 500 ? LogSeverity::kWarning : LogSeverity::kInfo;
  if (severity < MinLogSeverity()) return;
  if (!IsWanted(which_.load(std::memory_order_relaxed), exchange)) return;
  const HttpRequest& request = exchange.request;
  LogFields line("http");
  line.Add("id", request.id)
      .Add("trace_id", request.trace.trace_id)
      .Add("span_id", request.trace.span_id)
      .Add("api", api)
      .Add("client", request.peer)
      .Add("owner", request.owner)
      .Add("method", Escaped(request.method, kMaxMethodBytes))
      .Add("path", Escaped(request.path, kMaxPathBytes));
  if (exchange.status != 0) line.Add("status", exchange.status);
  if (!exchange.complete) line.Add("outcome", "client_left");
  line.Add("bytes", exchange.sent_bytes)
      .AddMilliseconds("duration_ms", absl::ToDoubleMilliseconds(exchange.duration));
  line.Write(severity);
}

}  // namespace mneme
