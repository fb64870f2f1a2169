// EngineLoop: commands on named sessions, their expiry, and the integrity check.
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log_fields.h"
#include "base/status_macros.h"
#include "engine/engine_loop.h"
#include "engine/status_payload.h"

namespace mneme {

SessionInfo EngineLoop::Describe(const Session& session) const {
  return {.key = session.key,
          .position = session.position(),
          .has_pending_token = session.pending_token.has_value(),
          .busy = session.busy,
          .created = session.created,
          .last_used = session.last_used,
          .ttl = session.ttl,
          .state_bytes = parts_.pool.slab_bytes()};
}

// A session that may be copied or deleted.
absl::StatusOr<Session*> EngineLoop::FindIdle(const SessionKey& key) const {
  MNEME_RETURN_IF_ERROR(ValidateSessionName(key.name, "name"));
  Session* session = sessions_.Find(key);
  if (session == nullptr) {
    return WithReason(absl::NotFoundError(absl::StrCat("there is no session \"", key.name, "\"")),
                      kReasonNoSession);
  }
  if (session->busy) {
    return WithPosition(
        WithReason(absl::FailedPreconditionError(absl::StrCat(
                       "session \"", key.name, "\" is busy: a request for it waits or runs")),
                   kReasonSessionBusy),
        session->position());
  }
  return session;
}

absl::StatusOr<Session*> EngineLoop::AddSession(const SessionKey& key, absl::Duration ttl) {
  MNEME_RETURN_IF_ERROR(ValidateSessionName(key.name, "name"));
  if (ttl < absl::ZeroDuration()) {
    return FieldError("ttl",
                      absl::StrCat("is ", absl::FormatDuration(ttl), ", expected at least 0"));
  }
  if (sessions_.Find(key) != nullptr) {
    return WithReason(
        absl::AlreadyExistsError(absl::StrCat("there is a session \"", key.name, "\" already")),
        kReasonSessionExists);
  }
  if (claimed_.contains(key)) {
    return WithReason(absl::FailedPreconditionError(absl::StrCat(
                          "a waiting request is about to create session \"", key.name, "\"")),
                      kReasonSessionBusy);
  }
  MNEME_RETURN_IF_ERROR(CheckOwnerLimit(key.owner));
  if (slabs_awaited_ >= parts_.pool.free_slots()) return NoFreeSlab(1);
  return &InsertSession(key, ttl);
}

// With a slab of its own: one has to be free. A ttl of zero is the default one.
Session EngineLoop::MakeSession(const SessionKey& key, absl::Duration ttl) {
  Session session;
  session.key = key;
  session.id = ++sessions_made_;
  session.slot = parts_.pool.Acquire().value();
  session.history = TokenHistory(options_.history_tokens);
  session.created = session.last_used = parts_.clock.Now();
  session.ttl = ttl == absl::ZeroDuration() ? options_.default_session_ttl : ttl;
  return session;
}

Session& EngineLoop::InsertSession(const SessionKey& key, absl::Duration ttl) {
  parts_.stats.sessions_created.Add();
  return sessions_.Insert(MakeSession(key, ttl), Now());
}

absl::StatusOr<SessionInfo> EngineLoop::CreateSession(const SessionKey& key, absl::Duration ttl) {
  MNEME_ASSIGN_OR_RETURN(const Session* session, AddSession(key, ttl));
  PublishSessions();  // before the answer, as with the other commands that change them
  return Describe(*session);
}

absl::StatusOr<SessionInfo> EngineLoop::GetSession(const SessionKey& key) const {
  MNEME_RETURN_IF_ERROR(ValidateSessionName(key.name, "name"));
  const Session* session = sessions_.Find(key);
  if (session == nullptr) {
    return WithReason(absl::NotFoundError(absl::StrCat("there is no session \"", key.name, "\"")),
                      kReasonNoSession);
  }
  return Describe(*session);
}

std::vector<SessionInfo> EngineLoop::ListSessions(const std::optional<std::string>& owner,
                                                  const std::string& name_prefix) const {
  std::vector<SessionInfo> infos;
  for (const Session* session : sessions_.List(owner, name_prefix)) {
    infos.push_back(Describe(*session));
  }
  return infos;
}

absl::StatusOr<SessionInfo> EngineLoop::ForkSession(const SessionKey& source,
                                                    const SessionKey& target, absl::Duration ttl) {
  MNEME_ASSIGN_OR_RETURN(Session * parent, FindIdle(source));
  MNEME_ASSIGN_OR_RETURN(Session * child, AddSession(target, ttl));
  parts_.pool.Copy(parent->slot, child->slot);
  child->fed_tokens = parent->fed_tokens;
  child->fed = parent->fed;
  child->pending_token = parent->pending_token;
  child->has_text = parent->has_text;
  child->history = parent->history;
  PublishSessions();
  return Describe(*child);
}

absl::Status EngineLoop::DeleteSession(const SessionKey& key) {
  MNEME_ASSIGN_OR_RETURN(Session * session, FindIdle(key));
  RemoveSession(*session, SessionEnd::kDeleted);
  PublishSessions();
  return absl::OkStatus();
}

void EngineLoop::RemoveSession(Session& session, SessionEnd why) {
  parts_.stats.ended_by(why).Add();
  parts_.pool.Release(session.slot);
  sessions_.Remove(session);
}

void EngineLoop::ExpireSessions() {
  while (Session* session = sessions_.FirstExpired(Now())) {
    LogFields("session_expired")
        .Add("owner", session->key.owner)
        .Add("session", session->key.name)
        .Add("tokens", session->position())
        .Add("ttl", absl::FormatDuration(session->ttl))
        .Write(LogSeverity::kInfo);
    RemoveSession(*session, SessionEnd::kExpired);
  }
}

absl::Status EngineLoop::CheckIntegrity() const {
  std::vector<int> owners(parts_.pool.slots(), 0);
  int ephemeral = 0;
  sessions_.ForEach([&](const Session& session) { ++owners.at(session.slot); });
  for (const auto& generation : running_) {
    for (const Choice& choice : generation->choices) {
      if (choice.ephemeral == nullptr || choice.ephemeral->slot < 0) continue;
      ++owners.at(choice.ephemeral->slot);
      ++ephemeral;
    }
    for (const int slot : generation->reserved_slots) {
      ++owners.at(slot);
      ++ephemeral;
    }
    if (generation->named() && !generation->claims_session && !generation->ended) {
      return absl::InternalError("a running request does not claim its session");
    }
  }
  for (int slot = 0; slot < parts_.pool.slots(); ++slot) {
    if (owners[slot] != (parts_.pool.taken(slot) ? 1 : 0)) {
      return absl::InternalError(absl::StrCat("slab ", slot, " is ",
                                              parts_.pool.taken(slot) ? "taken" : "free",
                                              " and has ", owners[slot], " owners"));
    }
  }
  if (ephemeral != ephemeral_slabs_) {
    return absl::InternalError(
        absl::StrCat(ephemeral, " slabs are ephemeral, counted ", ephemeral_slabs_));
  }
  size_t claims = 0;
  for (const auto* queue : {&waiting_, &running_}) {
    for (const auto& generation : *queue) claims += generation->claims_session ? 1 : 0;
  }
  if (claims != claimed_.size()) {
    return absl::InternalError(
        absl::StrCat(claimed_.size(), " sessions are claimed by ", claims, " requests"));
  }
  absl::Status busy;
  sessions_.ForEach([&](const Session& session) {
    if (session.busy != claimed_.contains(session.key)) {
      busy = absl::InternalError(absl::StrCat("session \"", session.key.name, "\" is ",
                                              session.busy ? "busy" : "idle", " by mistake"));
    }
  });
  return busy;
}

}  // namespace mneme
