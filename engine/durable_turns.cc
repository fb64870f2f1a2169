// EngineLoop: a request of a named session has fed it for good when the log says so. Until then its
// last event is held back, and its session claimed.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/engine_loop.h"
#include "engine/recorded_answer.h"
#include "engine/status_payload.h"

namespace mneme {

// Whether a session that is forgotten here goes on from where it was stored last, the end of a
// turn.
bool EngineLoop::KeepsOldState(const Session& session) const {
  if (log_ == nullptr) return false;
  return session.parked || (session.durability == Durability::kTurn && session.logged);
}

// Whether it was to begin a session, anew or not, and has fed that nothing, or nothing but what the
// log has.
bool EngineLoop::IsUnborn(const Generation& g, const absl::Status& status) {
  if (!g.is_admitted() || !g.created_session || status.ok()) return false;
  const Session& session = *g.choices[0].session;
  return session.position() <= (session.cut == nullptr ? 0 : session.cut->fed_tokens);
}

// Whether that becomes of a request's session, which it spoilt, or was to begin anew and did not.
bool EngineLoop::GoesBack(const Generation& g, const absl::Status& status) const {
  if (!g.named() || !g.is_admitted()) return false;
  return (g.spoilt || IsUnborn(g, status)) && KeepsOldState(*g.choices[0].session);
}

// Whether its session holds its conversation in the place of another one.
bool EngineLoop::HasEdited(const Generation& g, const absl::Status& status) const {
  return g.goes_back && g.named() && g.is_admitted() && !g.unlogged && !GoesBack(g, status) &&
         !IsUnborn(g, status);
}

// The error that a request that spoilt its session ends with. The position of a memory that
// diverged is the one where it did.
absl::Status EngineLoop::WithWhatIsLeft(const Generation& g, const absl::Status& why) const {
  if (!g.named() || !g.is_admitted()) return why;
  const bool goes_back = GoesBack(g, why);
  const int64_t position = goes_back ? log_->PositionOf(g.request.session) : 0;
  absl::Status told(why.code(),
                    absl::StrCat(why.message(), "; the session ",
                                 goes_back ? absl::StrCat("is as it was before the request, at "
                                                          "position ",
                                                          position)
                                           : "has ended"));
  why.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { told.SetPayload(url, payload); });
  return goes_back && !PositionOf(why).has_value() ? WithPosition(std::move(told), position) : told;
}

bool EngineLoop::MustLog(const Generation& g, const absl::Status& status) const {
  if (log_ == nullptr || !g.named() || !g.is_admitted() || g.spoilt) return false;
  const Session& session = *g.choices[0].session;
  return !IsUnborn(g, status) && (!g.turn.tokens.empty() || g.turn.dropped_pending ||
                                  !session.logged || (g.record != nullptr && status.ok()));
}

// The request holds nothing any more but its claim on the session.
void EngineLoop::LogTurn(Generation& g, TokenEvent last) {
  Session& session = *g.choices[0].session;
  sessions_.Unreserve(g.reserved_slots);
  session.last_used = parts_.clock.Now();
  g.turn.tokens.erase(g.turn.tokens.begin(), g.turn.tokens.begin() + g.turn.known);
  g.turn.fed_pending = g.feeds_pending && !g.turn.tokens.empty();
  const int64_t fed_of_prompt = std::min(g.choices[0].cursor, g.feed_tokens()) - g.turn.known;
  g.turn.prompted = std::max<int64_t>(0, fed_of_prompt - (g.turn.fed_pending ? 1 : 0));
  g.ended = true;
  queue_.Leave(g);
  std::optional<RequestRecord> record = RecordOf(g, last);
  g.unlogged_last = std::move(last);
  log_->AddTurn(session, std::move(g.turn), std::move(record),
                [this, &g](const absl::Status& logged) { TurnLogged(g, logged); });
}

void EngineLoop::TurnLogged(Generation& g, const absl::Status& status) {
  TokenEvent last = *std::exchange(g.unlogged_last, std::nullopt);
  if (!status.ok()) {
    g.unlogged = true;
    last.status = status;
    last.finish = g.choices[0].finish = FinishReason::kError;
    const std::optional<SessionRecord> before = log_->Find(g.request.session);
    last.session_position = before.has_value() ? before->position() : 0;
    last.has_pending_token = before.has_value() && before->pending_token.has_value();
  }
  FinishWhenKept(g, std::move(last));
}

// What a repetition of the request's idempotency key is to find, also after a restart.
std::optional<RequestRecord> EngineLoop::RecordOf(Generation& g, const TokenEvent& last) {
  if (g.record == nullptr || g.choices[0].session->durability != Durability::kTurn) {
    return std::nullopt;
  }
  if (!last.status.ok() && g.usage.fed_tokens + g.usage.cached_tokens == 0) return std::nullopt;
  keys_.Append(*g.record, last);
  g.record_closed = true;
  RequestRecord record = {.owner = g.record->key.first,
                          .key = g.record->key.second,
                          .digest = g.record->digest,
                          .position = last.session_position};
  const KeyState state = last.status.ok() ? KeyState::kFinished : KeyState::kBroken;
  record.outcome = static_cast<int>(state);
  if (state == KeyState::kFinished && !g.record->dropped_events) {
    record.reply = EncodeAnswer(g.record->events);
  }
  return record;
}

// A record of an earlier process, or one that was forgotten here; null where there is none.
absl::StatusOr<KeyRecord*> EngineLoop::FindStoredRecord(const Request& request) {
  const std::string& owner = request.session.owner;
  const std::string& key = request.idempotency_key;
  if (log_ == nullptr || !log_->store().MayHaveRequest(owner, key)) return nullptr;
  const auto stored = log_->store().FindRequest(owner, key);
  if (!stored.ok()) {
    return WithReason(
        absl::Status(
            stored.status().code(),
            absl::StrCat("whether a request with this idempotency key ran before cannot be "
                         "read from the session store: ",
                         stored.status().message())),
        absl::IsDataLoss(stored.status()) ? kReasonSessionLost : kReasonNotDurable);
  }
  if (!stored->has_value()) return nullptr;
  const RequestRecord& record = **stored;
  absl::StatusOr<std::vector<TokenEvent>> events = DecodeAnswer(record.reply);
  const auto state = static_cast<KeyState>(record.outcome);
  KeyRecord& known = keys_.Insert(owner, key, record.digest);
  if (events.ok()) {
    for (const TokenEvent& event : *events) keys_.Append(known, event);
  }
  known.dropped_events = known.dropped_events || !events.ok() || events->empty();
  keys_.End(known, state, record.position, static_cast<int64_t>(record.session));
  return &known;
}

}  // namespace mneme
