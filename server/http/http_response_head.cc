#include "server/http/http_response_head.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace mneme {
namespace {

// A line break in a value would begin another field.
void AppendField(absl::string_view name, absl::string_view value, std::string& out) {
  absl::StrAppend(&out, name, ": ");
  for (const char c : value) out.push_back(c >= 0x20 && c != 0x7f ? c : ' ');
  out.append("\r\n");
}

}  // namespace

absl::string_view HttpReason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 410:
      return "Gone";
    case 411:
      return "Length Required";
    case 412:
      return "Precondition Failed";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return status >= 500 ? "Internal Server Error" : "Status";
  }
}

std::string ResponseHead(const HttpResponse& response, const ResponseFraming& framing) {
  std::string out =
      absl::StrCat("HTTP/1.1 ", response.status, " ", HttpReason(response.status), "\r\n");
  AppendField("Date",
              absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT", absl::Now(), absl::UTCTimeZone()), out);
  AppendField("Server", "mneme", out);
  AppendField("x-request-id", framing.request_id, out);
  if (!response.content_type.empty()) AppendField("Content-Type", response.content_type, out);
  for (const HttpField& field : response.fields) AppendField(field.name, field.value, out);
  if (framing.chunked) {
    AppendField("Transfer-Encoding", "chunked", out);
  } else if (!framing.is_stream && response.status != 204) {  // which has no body by itself
    AppendField("Content-Length", absl::StrCat(response.body.size()), out);
  }
  AppendField("Connection", framing.keep_alive ? "keep-alive" : "close", out);
  return out + "\r\n";
}

}  // namespace mneme
