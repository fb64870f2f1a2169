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

// Reasons, for a client that has to tell two errors of one code apart: kReasonBadField and so on.
// One list, so that whoever counts errors by reason has all of them.
#define MNEME_REASONS(REASON)                                                                 \
  REASON(BadField, "BAD_FIELD")                                                               \
  REASON(QueueFull, "QUEUE_FULL")                                                             \
  REASON(NoFreeSlab, "NO_FREE_SLAB")                                                          \
  REASON(SessionLimit, "KEY_SESSION_LIMIT")                                                   \
  /* Logs and snapshots of the key's sessions take as much of the store as they may. */       \
  REASON(StorageLimit, "KEY_STORAGE_LIMIT")                                                   \
  REASON(Draining, "DRAINING")                                                                \
  REASON(Unhealthy, "UNHEALTHY")                                                              \
  REASON(NoSession, "NO_SUCH_SESSION")                                                        \
  REASON(SessionExists, "SESSION_EXISTS")                                                     \
  REASON(SessionBusy, "SESSION_BUSY")                                                         \
  REASON(Position, "POSITION_MISMATCH")                                                       \
  REASON(KeyRunning, "IDEMPOTENCY_KEY_RUNNING")                                               \
  REASON(KeyBroken, "IDEMPOTENCY_KEY_BROKEN_OFF")                                             \
  REASON(KeyForgotten, "IDEMPOTENCY_RECORD_TOO_LARGE")                                        \
  /* Its answer was erased, as that told of segments that were to be forgotten. */            \
  REASON(ReplyErased, "IDEMPOTENCY_REPLY_FORGOTTEN")                                          \
  /* A later request edited the conversation in front of what that one fed. */                \
  REASON(KeyUndone, "IDEMPOTENCY_KEY_UNDONE")                                                 \
  REASON(KeyReused, "IDEMPOTENCY_KEY_REUSED")                                                 \
  /* The session's state has no room for what the request would feed (--max-context). */      \
  REASON(ContextFull, "CONTEXT_FULL")                                                         \
  REASON(History, "HISTORY_MISMATCH")                                                         \
  /* As much of the history as the session holds, in bytes, ends inside of a token: the       \
     payload `position` says how many bytes (conversation_digest.h). */                       \
  REASON(HistoryCut, "HISTORY_ENDS_INSIDE_TOKEN")                                             \
  /* A text to be classified for a model that generates, or the other way round. */           \
  REASON(WrongKind, "WRONG_KIND_OF_MODEL")                                                    \
  /* Of a session's file: it is none, it was damaged, a newer server wrote it, it has more    \
     bytes than any that this server takes, its session is another model's. */                \
  REASON(BadFile, "BAD_FILE")                                                                 \
  REASON(Checksum, "CHECKSUM_MISMATCH")                                                       \
  REASON(NewerFile, "FILE_TOO_NEW")                                                           \
  REASON(FileTooLarge, "FILE_TOO_LARGE")                                                      \
  REASON(OtherModel, "MODEL_MISMATCH")                                                        \
  /* Engrams of the session would have no place with this server's --engram-capacity, or had  \
     none with the one that it was kept with. */                                              \
  REASON(EngramCapacity, "ENGRAM_CAPACITY")                                                   \
  /* Segments that are to be forgotten were not read to their end. */                         \
  REASON(SegmentOpen, "SEGMENT_OPEN")                                                         \
  /* The session existed, and what it remembered is gone, or may be; the payload `position`   \
     says where it stood, if that is known. */                                                \
  REASON(SessionLost, "SESSION_LOST")                                                         \
  /* What was done to a session could not be made durable: it is as it was before. */         \
  REASON(NotDurable, "NOT_DURABLE")                                                           \
  /* Of going back: the server has no store, the session has no log, the log does not lead    \
     there any more, there is no checkpoint of that name, there is one already, there are too \
     many. */                                                                                 \
  REASON(NoStore, "NO_STORE")                                                                 \
  REASON(NotLogged, "NOT_LOGGED")                                                             \
  /* A request asks for another durability than the session began with. */                    \
  REASON(Durability, "DURABILITY_MISMATCH")                                                   \
  REASON(MemorySeed, "MEMORY_SEED_MISMATCH")                                                  \
  REASON(PositionGone, "POSITION_GONE")                                                       \
  REASON(NoCheckpoint, "NO_SUCH_CHECKPOINT")                                                  \
  REASON(CheckpointExists, "CHECKPOINT_EXISTS")                                               \
  REASON(CheckpointLimit, "CHECKPOINT_LIMIT")                                                 \
  REASON(StepFailed, "STEP_FAILED")                                                           \
  /* A memory that is trained while it reads is no longer finite; the payload `position` says \
     since which token. */                                                                    \
  REASON(MemoryDiverged, "MEMORY_DIVERGED")

#define MNEME_DEFINE_REASON_(name, text) inline constexpr char kReason##name[] = text;
#define MNEME_REASON_TEXT_(name, text) text,
MNEME_REASONS(MNEME_DEFINE_REASON_)
inline constexpr absl::string_view kReasons[] = {MNEME_REASONS(MNEME_REASON_TEXT_)};
#undef MNEME_REASON_TEXT_
#undef MNEME_DEFINE_REASON_
#undef MNEME_REASONS

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
