#include "server/openai/wanted_call.h"

#include <cstdint>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/utf8.h"
#include "engine/status_payload.h"

namespace mneme {

absl::StatusOr<absl::Duration> DeadlineOf(const HttpRequest& request) {
  const absl::string_view text = request.Field("x-request-timeout-ms");
  int64_t ms = 0;
  if (text.empty()) return absl::InfiniteDuration();
  if (!absl::SimpleAtoi(text, &ms) || ms <= 0) {
    return FieldError(
        "x-request-timeout-ms",
        absl::StrCat("is \"", SanitizeUtf8(Shortened(text, 60)), "\", expected milliseconds"));
  }
  return request.received + absl::Milliseconds(ms);
}

StillWanted WantedUntil(absl::Duration deadline, const HttpCall& call,
                        const TextExecutors& executors) {
  return [deadline, &call, &executors]() -> absl::Status {
    if (call.client_left()) return absl::CancelledError("the client has left");
    if (RealClock().Monotonic() >= deadline) {
      return absl::DeadlineExceededError("the call's deadline passed");
    }
    return executors.StillOpen();
  };
}

CallFacts CallFactsOf(const HttpRequest& http) {
  return {.request_id = http.id,
          .owner = http.owner,
          .origin = {.api = "http",
                     .client = http.peer,
                     .trace_id = http.trace.trace_id,
                     .span_id = http.trace.span_id},
          .received = http.received};
}

}  // namespace mneme
