#include "server/http/http_cors.h"

#include <utility>

namespace mneme {
namespace {

// The fields that this server reads, for browsers that know no "*"; and "*", as clients send many
// that it does not read (OpenAI's: x-stainless-os and so on). Browsers do not count authorization
// among that.
constexpr absl::string_view kRequestFields =
    "authorization, content-type, idempotency-key, traceparent, tracestate, x-request-id, "
    "x-request-timeout-ms, x-session-id, *";
// The fields that pages may read beside those that they always may.
constexpr absl::string_view kResponseFields =
    "retry-after, retry-after-ms, traceparent, tracestate, x-idempotent-replay, x-request-id, "
    "x-session-id, x-session-position, x-session-resumed-tokens, x-session-reuse, "
    "x-session-rewound-from, x-should-retry";
// Seconds for which a browser need not ask again.
constexpr absl::string_view kMaxAge = "3600";

// The value of Access-Control-Allow-Origin; empty: the field is left out.
std::string AllowedOrigin(const std::vector<std::string>& origins, const HttpRequest& request) {
  const absl::string_view origin = request.Field("origin");
  if (origin.empty()) return "";
  for (const std::string& allowed : origins) {
    if (allowed == "*" || allowed == origin) return allowed;
  }
  return "";
}

}  // namespace

std::optional<HttpResponse> AnswerPreflight(const std::vector<std::string>& origins,
                                            const HttpRequest& request, absl::string_view methods) {
  if (request.method != "OPTIONS" || methods.empty() ||
      request.Field("access-control-request-method").empty() ||
      AllowedOrigin(origins, request).empty()) {
    return std::nullopt;
  }
  return HttpResponse{.status = 204,
                      .content_type = "",
                      .fields = {{"Access-Control-Allow-Methods", std::string(methods)},
                                 {"Access-Control-Allow-Headers", std::string(kRequestFields)},
                                 {"Access-Control-Max-Age", std::string(kMaxAge)}}};
}

void AddCors(const std::vector<std::string>& origins, const HttpRequest& request,
             HttpResponse& response) {
  if (origins.empty()) return;
  // Also where it says nothing else: a cache must not give that answer to an allowed page.
  response.fields.push_back({"Vary", "Origin"});
  std::string origin = AllowedOrigin(origins, request);
  if (origin.empty()) return;
  response.fields.push_back({"Access-Control-Allow-Origin", std::move(origin)});
  response.fields.push_back({"Access-Control-Expose-Headers", std::string(kResponseFields)});
}

}  // namespace mneme
