#include "server/http/http_error.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "base/utf8.h"
#include "engine/status_payload.h"
#include "server/process/out_of_memory.h"

namespace mneme {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::Duration kDefaultRetryDelay = absl::Seconds(1);

// OpenAI's names where it has one.
absl::string_view TypeOf(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 408:
      return "timeout_error";
    case 409:
      return "conflict_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "service_unavailable_error";
    default:
      return http_status >= 500 ? "server_error" : "invalid_request_error";
  }
}

std::string Body(int http_status, absl::string_view message, absl::string_view param,
                 absl::string_view code, std::optional<int64_t> position = std::nullopt) {
  Json error = {{"message", SanitizeUtf8(message)},
                {"type", std::string(TypeOf(http_status))},
                {"param", param.empty() ? Json() : Json(SanitizeUtf8(param))},
                {"code", std::string(code)}};
  if (position.has_value()) error["position"] = *position;
  return Json{{"error", std::move(error)}}.dump();
}

std::string BodyOf(const absl::Status& status) {
  return Body(
      HttpStatusOf(status), status.message(), FieldOf(status).value_or(""),
      absl::AsciiStrToLower(ReasonOf(status).value_or(absl::StatusCodeToString(status.code()))),
      PositionOf(status));
}

// Another try finds the same unless somebody else changes something, except where the server says
// that waiting helps. A busy session is free again once its request has ended.
bool RetryCanHelp(const absl::Status& status, int http_status) {
  if (http_status == 429 || http_status == 503) return WaitingHelps(status);
  return http_status == 409 && ReasonOf(status) == kReasonSessionBusy;
}

}  // namespace

int HttpStatusOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kDeadlineExceeded:
      return 408;
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kAlreadyExists:
      return 409;
    case absl::StatusCode::kFailedPrecondition:  // of a fork or an end of a busy session, too
      return ReasonOf(status) == kReasonSessionBusy ? 409 : 412;
    case absl::StatusCode::kResourceExhausted:
      if (ReasonOf(status) == kReasonFileTooLarge) return 413;
      if (ReasonOf(status) == kReasonNotDurable) return 503;
      return ReasonOf(status) == kReasonOutOfMemory ? 503 : 429;
    case absl::StatusCode::kDataLoss:
      if (ReasonOf(status) == kReasonChecksum) return 422;  // what was sent, not what is here
      return ReasonOf(status) == kReasonSessionLost ? 410 : 500;
    case absl::StatusCode::kCancelled:
      return 499;
    case absl::StatusCode::kUnimplemented:
      return 501;
    case absl::StatusCode::kUnavailable:
      return 503;
    default:
      return 500;
  }
}

absl::StatusCode StatusCodeOf(int http_status) {
  switch (http_status) {
    case 404:
    case 405:
      return absl::StatusCode::kNotFound;
    case 408:
      return absl::StatusCode::kDeadlineExceeded;
    case 413:
    case 431:
      return absl::StatusCode::kResourceExhausted;
    case 501:
      return absl::StatusCode::kUnimplemented;
    case 503:
      return absl::StatusCode::kUnavailable;
    default:
      return http_status >= 500 ? absl::StatusCode::kInternal : absl::StatusCode::kInvalidArgument;
  }
}

std::string ErrorJson(const absl::Status& status) { return BodyOf(status); }

HttpResponse ErrorResponse(const absl::Status& status) {
  HttpResponse response;
  response.status = HttpStatusOf(status);
  response.body = BodyOf(status);
  if (response.status == 401) response.fields.push_back({"WWW-Authenticate", "Bearer"});
  const bool should_retry = RetryCanHelp(status, response.status);
  if (should_retry && (response.status == 429 || response.status == 503)) {
    const absl::Duration delay = RetryAfterOf(status).value_or(kDefaultRetryDelay);
    const int64_t ms = std::max<int64_t>(1, absl::ToInt64Milliseconds(delay));
    response.fields.push_back({"Retry-After", absl::StrCat((ms + 999) / 1000)});
    response.fields.push_back({"retry-after-ms", absl::StrCat(ms)});
  }
  response.fields.push_back({"x-should-retry", should_retry ? "true" : "false"});
  return response;
}

HttpResponse ErrorResponse(int http_status, absl::string_view message, absl::string_view code) {
  const std::string reason =
      absl::StrReplaceAll(absl::AsciiStrToLower(HttpReason(http_status)), {{" ", "_"}});
  HttpResponse response;
  response.status = http_status;
  response.body = Body(http_status, message, "", code.empty() ? reason : code);
  const bool retry = http_status == 408 || http_status == 503;
  response.fields.push_back({"x-should-retry", retry ? "true" : "false"});
  return response;
}

}  // namespace mneme
