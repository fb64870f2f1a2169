// SessionManager: sessions that go back to where they were, and checkpoints. The store changes its
// log first; what is here of the session is given up then, and it is replayed from there when
// somebody uses it.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "engine/request_check.h"
#include "engine/sessions/session_manager.h"
#include "engine/status_payload.h"

namespace mneme {
namespace {

// As the store refuses it.
absl::Status WithRewindReason(const absl::Status& status) {
  if (absl::IsOutOfRange(status)) return WithReason(status, kReasonPositionGone);
  if (absl::IsNotFound(status)) return WithReason(status, kReasonNoCheckpoint);
  if (absl::IsAlreadyExists(status)) return WithReason(status, kReasonCheckpointExists);
  return status;
}

// The same of a session that is to go back, and cannot for what it forgot, if that is why.
absl::Status WithRewindReason(const absl::Status& status, const RewindTarget& to,
                              const ForgottenRange& forgotten) {
  const bool is_gone = to.checkpoint.empty()
                           ? absl::IsOutOfRange(status) && to.position < forgotten.at
                           : absl::IsNotFound(status);
  if (!is_gone || forgotten.at == 0) return WithRewindReason(status);
  return WithRewindReason(absl::Status(
      status.code(),
      absl::StrCat(status.message(), "; it stood at position ", forgotten.at,
                   " when it forgot positions ", forgotten.begin, " to ", forgotten.end - 1,
                   ", and nothing that led there was kept, checkpoints neither")));
}

absl::Status TooManyCheckpoints(absl::string_view who, int64_t count, int most) {
  return WithReason(absl::ResourceExhaustedError(absl::StrCat(
                        who, " has ", count, count == 1 ? " checkpoint" : " checkpoints",
                        ", and may have ", most, "; delete one")),
                    kReasonCheckpointLimit);
}

}  // namespace

absl::Status SessionManager::CheckStore() const {
  return options_.log != nullptr ? absl::OkStatus() : NoStore();
}

absl::Status SessionManager::CheckLogged(const Session& session) const {
  MNEME_RETURN_IF_ERROR(CheckStore());
  if (session.durability == Durability::kTurn && session.logged) return absl::OkStatus();
  return WithPosition(
      WithReason(
          absl::FailedPreconditionError(absl::StrCat(
              "session \"", session.key.name,
              "\" is not durable: it has no log to go back in, expected durability \"turn\"")),
          kReasonNotLogged),
      session.position());
}

absl::StatusOr<Session*> SessionManager::FindLogged(const SessionKey& key) {
  MNEME_RETURN_IF_ERROR(CheckStore());
  MNEME_ASSIGN_OR_RETURN(Session * session, FindIdle(key));
  const absl::Status logged = CheckLogged(*session);
  if (!logged.ok()) DropIfUnused(key);
  MNEME_RETURN_IF_ERROR(logged);
  return session;
}

void SessionManager::ClaimForCommand(const SessionKey& key) {
  Claim(key);
  ++commands_;
}

void SessionManager::EndCommand(const SessionKey& key) {
  --commands_;
  Unclaim(key, /*ran=*/false);
  PublishGauges();
}

// --- Going back ---

void SessionManager::RewindClaimed(Session& session, const RewindTarget& to, Done done) {
  CHECK(session.busy) << "session \"" << session.key.name << "\" is not claimed";
  if (const absl::Status logged = CheckLogged(session); !logged.ok()) return done(logged);
  if (to.checkpoint.empty() && to.position == session.position()) return done(absl::OkStatus());
  rewinds_.push_back({session.key, to, std::move(done)});
  BeginRewinds();
}

// Those whose state does not come from the store, which reads the log meanwhile.
void SessionManager::BeginRewinds() {
  for (auto next = rewinds_.begin(); next != rewinds_.end();) {
    Session* session = Find(next->key);
    CHECK(session != nullptr) << "session \"" << next->key.name << "\" is claimed, and gone";
    if (parking_.IsBeingFetchedFromStore(*session)) {
      ++next;
      continue;
    }
    PendingRewind begun = std::move(*next);
    next = rewinds_.erase(next);
    options_.log->Rewind(
        session->id, begun.to,
        [this, key = begun.key, to = begun.to, done = begun.done](const absl::Status& status) {
          Session* const back = Find(key);
          CHECK(back != nullptr) << "session \"" << key.name << "\" is claimed, and gone";
          const ForgottenRange forgotten = back->forgotten;
          if (status.ok()) ReturnToStore(*back);
          done(WithRewindReason(status, to, forgotten));
        });
  }
}

// What the store has of it is what it is.
void SessionManager::ReturnToStore(Session& session) {
  parking_.Remove(session);
  Session stored;
  stored.history = TokenHistory(options_.history_tokens);
  const std::optional<SessionRecord> record = options_.log->Find(session.key);
  CHECK(record.has_value()) << "session \"" << session.key.name << "\" went back, and is gone";
  const absl::Status restored = SessionLog::Restore(*record, stored);
  CHECK(restored.ok()) << restored.message();
  stored.busy = session.busy;
  stored.expires = session.expires;
  session = std::move(stored);
  stats_.rewinds.Add();
  if (options_.on_rewound) options_.on_rewound(session.id, session.position());
}

void SessionManager::Rewind(const SessionKey& key, const RewindTarget& to, InfoDone done) {
  const absl::StatusOr<Session*> session = FindLogged(key);
  if (!session.ok()) return done(session.status());
  ClaimForCommand(key);
  RewindClaimed(**session, to, [this, key, waiting = std::move(done)](const absl::Status& status) {
    SessionInfo info = Describe(*Find(key));
    info.busy = false;
    EndCommand(key);
    if (!status.ok()) return waiting(status);
    waiting(info);
  });
}

void SessionManager::ForkAt(const SessionKey& source, const SessionKey& target, absl::Duration ttl,
                            const RewindTarget& at, InfoDone done) {
  const absl::StatusOr<Session*> parent = FindLogged(source);
  if (!parent.ok()) return done(parent.status());
  const int64_t id = (*parent)->id;
  const ForgottenRange forgotten = (*parent)->forgotten;
  DropIfUnused(source);
  if (const absl::Status free = CheckNew(target, ttl); !free.ok()) return done(free);
  Session child = Make(target, ttl);
  child.durability = Durability::kTurn;
  ClaimForCommand(target);
  options_.log->ForkAt(
      id, child, at,
      [this, target, at, forgotten, waiting = std::move(done)](const absl::Status& status) {
        EndCommand(target);
        if (!status.ok()) return waiting(WithRewindReason(status, at, forgotten));
        stats_.sessions_created.Add();
        waiting(Get(target));
      });
}

// --- Checkpoints ---

int64_t SessionManager::CheckpointsOf(const std::string& owner) const {
  const auto coming = new_checkpoints_.find(owner);
  return options_.log->store().UsageOf(owner).checkpoints +
         (coming == new_checkpoints_.end() ? 0 : coming->second);
}

absl::Status SessionManager::CheckCheckpoints(const SessionRecord& record) const {
  if (options_.max_checkpoints > 0 && record.checkpoints >= options_.max_checkpoints) {
    return TooManyCheckpoints(absl::StrCat("session \"", record.name, "\""), record.checkpoints,
                              options_.max_checkpoints);
  }
  if (options_.max_checkpoints_per_owner <= 0) return absl::OkStatus();
  const int64_t checkpoints = CheckpointsOf(record.owner);
  if (checkpoints < options_.max_checkpoints_per_owner) return absl::OkStatus();
  return TooManyCheckpoints("this key", checkpoints, options_.max_checkpoints_per_owner);
}

void SessionManager::AddCheckpoint(const SessionKey& key, const std::string& name,
                                   CheckpointDone done) {
  if (const absl::Status valid = ValidateSessionName(name, "checkpoint"); !valid.ok()) {
    return done(valid);
  }
  const absl::StatusOr<Session*> found = FindLogged(key);
  if (!found.ok()) return done(found.status());
  Session& session = **found;
  absl::Status room;
  if (const auto record = options_.log->Find(key)) room = CheckCheckpoints(*record);
  if (!room.ok()) {
    DropIfUnused(key);
    return done(room);
  }
  const CheckpointInfo info = {.name = name,
                               .position = session.position(),
                               .has_pending_token = session.pending_token.has_value(),
                               .created = clock_.Now()};
  ClaimForCommand(key);
  ++new_checkpoints_[key.owner];
  options_.log->AddCheckpoint(session, name, info.created,
                              [this, key, info, turns = session.turns,
                               waiting = std::move(done)](const absl::Status& status) {
                                if (--new_checkpoints_[key.owner] == 0)
                                  new_checkpoints_.erase(key.owner);
                                EndCommand(key);
                                if (!status.ok()) return waiting(WithRewindReason(status));
                                stats_.checkpoints.Add();
                                checkpointed_[key] = turns;
                                SnapshotCheckpoints();
                                waiting(info);
                              });
}

// Going back to a checkpoint that has a snapshot is no more than a copy.
void SessionManager::SnapshotCheckpoints() {
  absl::erase_if(checkpointed_, [&](const auto& one) {
    Session* session = Find(one.first);
    const bool is_there = session != nullptr && session->turns == one.second &&
                          session->residence != Residence::kStored;
    if (!is_there) return true;
    if (session->busy) return false;
    if (session->residence == Residence::kParked && free_slabs() > 0) parking_.Fetch(*session);
    return session->residence == Residence::kResident && parking_.Snapshot(*session);
  });
}

void SessionManager::DropCheckpoint(const SessionKey& key, const std::string& name, Done done) {
  const absl::StatusOr<Session*> session = FindLogged(key);
  if (!session.ok()) return done(session.status());
  ClaimForCommand(key);
  options_.log->DropCheckpoint((*session)->id, name,
                               [this, key, waiting = std::move(done)](const absl::Status& status) {
                                 EndCommand(key);
                                 waiting(WithRewindReason(status));
                               });
}

}  // namespace mneme
