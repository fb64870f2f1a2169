// absl::Status, as everything below HTTP speaks it, to a response with OpenAI's error body:
//   {"error": {"message": ..., "type": ..., "param": ..., "code": ..., "position": ...}}
//
//   INVALID_ARGUMENT, OUT_OF_RANGE  400    UNAUTHENTICATED      401    PERMISSION_DENIED    403
//   NOT_FOUND                       404    DEADLINE_EXCEEDED    408    ABORTED              409
//   ALREADY_EXISTS                  409    FAILED_PRECONDITION  412    RESOURCE_EXHAUSTED   429
//   CANCELLED                       499    UNIMPLEMENTED        501    UNAVAILABLE          503
//   all others                      500
//   reason FILE_TOO_LARGE           413    CHECKSUM_MISMATCH    422    SESSION_LOST         410
//
// `param` is the field payload, `code` the reason payload in lower case, and `position`, a number
// that is there where the error has one, the position payload (engine/status_payload.h).
// 429 and 503 carry Retry-After where waiting helps. OpenAI's SDKs repeat 408, 409, 429 and 5xx by
// themselves: x-should-retry says whether that can help.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/http/http_message.h"

namespace mneme {

int HttpStatusOf(const absl::Status& status);

// For what HTTP itself refuses, by the status it is refused with: 411 is an INVALID_ARGUMENT.
absl::StatusCode StatusCodeOf(int http_status);

// The error body alone, for a stream that has begun.
std::string ErrorJson(const absl::Status& status);

HttpResponse ErrorResponse(const absl::Status& status);
// For errors of HTTP itself. Without a `code` it is the status' name: "length_required".
HttpResponse ErrorResponse(int http_status, absl::string_view message, absl::string_view code = "");

}  // namespace mneme
