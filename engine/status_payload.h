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
// Logs and snapshots of the key's sessions take as much of the store as they may.
inline constexpr char kReasonStorageLimit[] = "KEY_STORAGE_LIMIT";
inline constexpr char kReasonDraining[] = "DRAINING";
inline constexpr char kReasonUnhealthy[] = "UNHEALTHY";
inline constexpr char kReasonNoSession[] = "NO_SUCH_SESSION";
inline constexpr char kReasonSessionExists[] = "SESSION_EXISTS";
inline constexpr char kReasonSessionBusy[] = "SESSION_BUSY";
inline constexpr char kReasonPosition[] = "POSITION_MISMATCH";
inline constexpr char kReasonKeyRunning[] = "IDEMPOTENCY_KEY_RUNNING";
inline constexpr char kReasonKeyBroken[] = "IDEMPOTENCY_KEY_BROKEN_OFF";
inline constexpr char kReasonKeyForgotten[] = "IDEMPOTENCY_RECORD_TOO_LARGE";
// Its answer was erased, as that told of segments that were to be forgotten.
inline constexpr char kReasonReplyErased[] = "IDEMPOTENCY_REPLY_FORGOTTEN";
// A later request edited the conversation in front of what that one fed.
inline constexpr char kReasonKeyUndone[] = "IDEMPOTENCY_KEY_UNDONE";
inline constexpr char kReasonKeyReused[] = "IDEMPOTENCY_KEY_REUSED";
// The session's state has no room for what the request would feed (--max-context).
inline constexpr char kReasonContextFull[] = "CONTEXT_FULL";
inline constexpr char kReasonHistory[] = "HISTORY_MISMATCH";
// As much of the history as the session holds, in bytes, ends inside of a token: the payload
// `position` says how many bytes (conversation_digest.h).
inline constexpr char kReasonHistoryCut[] = "HISTORY_ENDS_INSIDE_TOKEN";
// A text to be classified for a model that generates, or the other way round.
inline constexpr char kReasonWrongKind[] = "WRONG_KIND_OF_MODEL";
// Of a session's file: it is none, it was damaged, a newer server wrote it, it has more bytes than
// any that this server takes, its session is another model's.
inline constexpr char kReasonBadFile[] = "BAD_FILE";
inline constexpr char kReasonChecksum[] = "CHECKSUM_MISMATCH";
inline constexpr char kReasonNewerFile[] = "FILE_TOO_NEW";
inline constexpr char kReasonFileTooLarge[] = "FILE_TOO_LARGE";
inline constexpr char kReasonOtherModel[] = "MODEL_MISMATCH";
// Engrams of the session would have no place with this server's --engram-capacity, or had none with
// the one that it was kept with.
inline constexpr char kReasonEngramCapacity[] = "ENGRAM_CAPACITY";
// Segments that are to be forgotten were not read to their end.
inline constexpr char kReasonSegmentOpen[] = "SEGMENT_OPEN";
// The session existed, and what it remembered is gone, or may be; the payload `position` says where
// it stood, if that is known.
inline constexpr char kReasonSessionLost[] = "SESSION_LOST";
// What was done to a session could not be made durable: it is as it was before.
inline constexpr char kReasonNotDurable[] = "NOT_DURABLE";
// Of going back: the server has no store, the session has no log, the log does not lead there any
// more, there is no checkpoint of that name, there is one already, there are too many.
inline constexpr char kReasonNoStore[] = "NO_STORE";
inline constexpr char kReasonNotLogged[] = "NOT_LOGGED";
// A request asks for another durability than the session began with.
inline constexpr char kReasonDurability[] = "DURABILITY_MISMATCH";
inline constexpr char kReasonMemorySeed[] = "MEMORY_SEED_MISMATCH";
inline constexpr char kReasonPositionGone[] = "POSITION_GONE";
inline constexpr char kReasonNoCheckpoint[] = "NO_SUCH_CHECKPOINT";
inline constexpr char kReasonCheckpointExists[] = "CHECKPOINT_EXISTS";
inline constexpr char kReasonCheckpointLimit[] = "CHECKPOINT_LIMIT";
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

// Whether the same request can succeed later though nobody does anything for it: the server is
// overloaded, or is not ready. Not where a limit of what is kept is reached, which only a deletion
// changes, unless the error says when to try again (a session expires).
bool WaitingHelps(const absl::Status& status);

std::optional<std::string> ReasonOf(const absl::Status& status);
std::optional<std::string> FieldOf(const absl::Status& status);
std::optional<int64_t> PositionOf(const absl::Status& status);
std::optional<absl::Duration> RetryAfterOf(const absl::Status& status);

}  // namespace mneme
