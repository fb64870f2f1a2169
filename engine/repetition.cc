#include "engine/repetition.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/status_payload.h"

namespace mneme {
namespace {

// When to ask again for the answer of a request that runs.
constexpr absl::Duration kWhileRunning = absl::Seconds(1);

// For a request that ended long ago: with the position that its session was left at, or, where the
// session is gone, 0, and words that say so.
absl::Status WithPositionThen(const KeyRecord& record, bool session_gone,
                              const absl::Status& status) {
  if (!session_gone) return WithPosition(status, record.position);
  return WithReason(
      WithPosition(absl::Status(status.code(),
                                absl::StrCat(status.message(), "; the session has ended since")),
                   0),
      ReasonOf(status).value_or(""));
}

}  // namespace

bool IsSessionGone(const KeyRecord& record, const SessionKey& key, const Session* session) {
  return !key.name.empty() && (session == nullptr || session->id != record.session_id);
}

absl::Status CheckRepetition(const KeyRecord& known, uint64_t digest, const Request& request,
                             const Session* session) {
  if (known.digest != digest) {
    return WithReason(FieldError("idempotency_key", "was used before, with a different request"),
                      kReasonKeyReused);
  }
  const bool gone = request.remember && IsSessionGone(known, request.session, session);
  if (known.state == KeyState::kRunning) {
    absl::Status status =
        WithRetryAfter(WithReason(absl::AbortedError("the request with this idempotency key is "
                                                     "still running, and cannot be followed"),
                                  kReasonKeyRunning),
                       kWhileRunning);
    return session == nullptr ? status : WithPosition(std::move(status), session->position());
  }
  if (known.state == KeyState::kBroken) {
    return WithPositionThen(
        known, gone,
        WithReason(absl::AbortedError(absl::StrCat(
                       "the request with this idempotency key broke off; the session then stood "
                       "at position ",
                       known.position)),
                   kReasonKeyBroken));
  }
  // Fed again, it would undo what undid it.
  if (known.state == KeyState::kUndone) {
    const int64_t position = gone || session == nullptr ? 0 : session->position();
    return WithPosition(
        WithReason(absl::AbortedError(absl::StrCat(
                       "what the request with this idempotency key did was undone by a later one "
                       "that edited the conversation",
                       gone ? "; the session has ended since"
                            : absl::StrCat("; the session stands at position ", position))),
                   kReasonKeyUndone),
        position);
  }
  if (known.state == KeyState::kErased) {
    return WithPositionThen(
        known, gone,
        WithReason(
            absl::AbortedError(absl::StrCat(
                "the request with this idempotency key finished at position ", known.position,
                ", and its answer was erased since, with segments of the conversation that "
                "were to be forgotten (ForgetSegments); nothing was fed again")),
            kReasonReplyErased));
  }
  if (known.dropped_events) {
    return WithPositionThen(
        known, gone,
        WithReason(absl::AbortedError(
                       absl::StrCat("the request with this idempotency key finished at position ",
                                    known.position, ", and its answer is no longer kept")),
                   kReasonKeyForgotten));
  }
  return absl::OkStatus();
}

}  // namespace mneme
