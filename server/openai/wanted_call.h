// What a call over HTTP says of itself, and until when its answer is worth working for.
#pragma once

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/work_meter.h"
#include "server/http/http_call.h"
#include "server/requests/request_conversion.h"
#include "server/requests/text_encoder.h"

namespace mneme {

// When the client stops waiting, says its header x-request-timeout-ms; on the monotonic clock, and
// infinite without one. INVALID_ARGUMENT for a header that is no number of milliseconds.
absl::StatusOr<absl::Duration> DeadlineOf(const HttpRequest& request);

// CANCELLED once the client has left, DEADLINE_EXCEEDED from `deadline` on, UNAVAILABLE once
// `executors` are abandoned. Both must outlive it.
StillWanted WantedUntil(absl::Duration deadline, const HttpCall& call,
                        const TextExecutors& executors);

// But for its deadline.
CallFacts CallFactsOf(const HttpRequest& http);

}  // namespace mneme
