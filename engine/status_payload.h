// Facts for machines, attached to an absl::Status: what server/ turns into google.rpc error
// details.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace mneme {

// Type URLs of the payloads.
inline constexpr char kReasonPayload[] = "mneme/reason";              // "SESSION_BUSY", see below
inline constexpr char kFieldPayload[] = "mneme/field";                // "sampling.top_p"
inline constexpr char kPositionPayload[] = "mneme/position";          // decimal
inline constexpr char kRetryAfterPayload[] = "mneme/retry_after_ms";  // decimal

// Reasons, for a client that has to tell two errors of one code apart.
inline constexpr char kReasonBadField[] = "BAD_FIELD";
inline constexpr char kReasonQueueFull[] = "QUEUE_FULL";
inline constexpr char kReasonNoFreeSlab[] = "NO_FREE_SLAB";
inline constexpr char kReasonSessionLimit[] = "KEY_SESSION_LIMIT";
inline constexpr char kReasonDraining[] = "DRAINING";
inline constexpr char kReasonUnhealthy[] = "UNHEALTHY";
inline constexpr char kReasonNoSession[] = "NO_SUCH_SESSION";
inline constexpr char kReasonSessionExists[] = "SESSION_EXISTS";
inline constexpr char kReasonSessionBusy[] = "SESSION_BUSY";
inline constexpr char kReasonPosition[] = "POSITION_MISMATCH";
inline constexpr char kReasonKeyRunning[] = "IDEMPOTENCY_KEY_RUNNING";
inline constexpr char kReasonKeyBroken[] = "IDEMPOTENCY_KEY_BROKEN_OFF";
inline constexpr char kReasonKeyForgotten[] = "IDEMPOTENCY_RECORD_TOO_LARGE";
inline constexpr char kReasonKeyReused[] = "IDEMPOTENCY_KEY_REUSED";
// The session's state has no room for what the request would feed (--max-context).
inline constexpr char kReasonContextFull[] = "CONTEXT_FULL";
inline constexpr char kReasonHistory[] = "HISTORY_MISMATCH";
// As much of the history as the session holds, in bytes, ends inside of a token: the payload
// `position` says how many bytes (conversation_digest.h).
inline constexpr char kReasonHistoryCut[] = "HISTORY_ENDS_INSIDE_TOKEN";
// A text to be classified for a model that generates, or the other way round.
inline constexpr char kReasonWrongKind[] = "WRONG_KIND_OF_MODEL";
// Of segments to be forgotten.
inline constexpr char kReasonSegmentOpen[] = "SEGMENT_OPEN";
inline constexpr char kReasonNothingToForget[] = "NOTHING_TO_FORGET";
inline constexpr char kReasonStepFailed[] = "STEP_FAILED";
// A memory that is trained while it reads is no longer finite; the payload `position` says since
// which token.
inline constexpr char kReasonMemoryDiverged[] = "MEMORY_DIVERGED";

// INVALID_ARGUMENT for one field of a request. The message is the field and `fault`, which should
// tell value and range: FieldError("sampling.top_p", "is 7, expected more than 0, at most 1").
absl::Status FieldError(absl::string_view field, absl::string_view fault);

// The same error as one of `field`, which the message then begins with where it began with the name
// of another one.
absl::Status WithField(const absl::Status& status, absl::string_view field);

// RESOURCE_EXHAUSTED because too much waits already; says when to try again.
absl::Status QueueFullError(absl::string_view message);

absl::Status WithReason(absl::Status status, absl::string_view reason);
absl::Status WithPosition(absl::Status status, int64_t position);
absl::Status WithRetryAfter(absl::Status status, absl::Duration after);

std::optional<std::string> ReasonOf(const absl::Status& status);
std::optional<std::string> FieldOf(const absl::Status& status);
std::optional<int64_t> PositionOf(const absl::Status& status);
std::optional<absl::Duration> RetryAfterOf(const absl::Status& status);

}  // namespace mneme
