#include "engine/sessions/session_manager.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/log_fields.h"
#include "base/status_macros.h"
#include "engine/request_check.h"
#include "engine/status_payload.h"

namespace mneme {
namespace {

// Bounds of retry hints.
constexpr absl::Duration kMinRetry = absl::Seconds(1);
constexpr absl::Duration kMaxRetry = absl::Minutes(1);

}  // namespace

SessionManager::SessionManager(StatePool& pool, Clock& clock, EngineStats& stats, Options options)
    : pool_(pool),
      clock_(clock),
      stats_(stats),
      options_(std::move(options)),
      parking_(pool, options_.host, clock, stats, options_.wake) {
  stats_.slabs_total.Set(pool_.slots());
}

void SessionManager::Claim(const SessionKey& key) {
  CHECK(claimed_.insert(key).second) << "session \"" << key.name << "\" is claimed twice";
  if (Session* session = Find(key)) {
    table_.MarkBusy(*session);
    parking_.Use(*session);
  }
}

Session* SessionManager::Unclaim(const SessionKey& key, bool ran) {
  CHECK(claimed_.erase(key) == 1) << "session \"" << key.name << "\" is not claimed";
  Session* session = Find(key);
  if (session == nullptr) return nullptr;
  table_.MarkIdle(*session, Now());
  parking_.Rest(*session);
  if (ran) session->last_used = clock_.Now();
  return session;
}

Session& SessionManager::CreateClaimed(const SessionKey& key, absl::Duration ttl) {
  CHECK(IsClaimed(key)) << "session \"" << key.name << "\" is not claimed";
  Session made = Make(key, ttl);
  made.slot = pool_.Acquire().value();
  Session& session = Insert(std::move(made));
  table_.MarkBusy(session);
  parking_.Use(session);
  return session;
}

void SessionManager::Remove(Session& session, SessionEnd why) {
  stats_.ended_by(why).Add();
  parking_.Remove(session);
  table_.Remove(session);
}

Session SessionManager::Make(const SessionKey& key, absl::Duration ttl) {
  Session session;
  session.key = key;
  session.id = ++made_;
  session.history = TokenHistory(options_.history_tokens);
  session.created = session.last_used = clock_.Now();
  session.ttl = ttl == absl::ZeroDuration() ? options_.default_ttl : ttl;
  return session;
}

Session& SessionManager::Insert(Session session) {
  stats_.sessions_created.Add();
  Session& inserted = table_.Insert(std::move(session), Now());
  if (inserted.slot >= 0) {
    parking_.AddWithSlab(inserted);
  } else {
    parking_.AddWithHost(inserted);
  }
  return inserted;
}

std::unique_ptr<Session> SessionManager::BeginEphemeral() {
  auto session = std::make_unique<Session>(Make({}, absl::ZeroDuration()));
  session->slot = pool_.Acquire().value();
  ++ephemeral_slabs_;
  return session;
}

std::vector<int> SessionManager::Reserve(int count) {
  std::vector<int> slots;
  for (int i = 0; i < count; ++i) slots.push_back(pool_.Acquire().value());
  ephemeral_slabs_ += count;
  return slots;
}

std::unique_ptr<Session> SessionManager::ForkEphemeral(const Session& parent, int reserved_slot) {
  auto session = std::make_unique<Session>(parent);
  session->key = {};
  session->slot = reserved_slot;
  pool_.Copy(parent.slot, reserved_slot, parent.fed_tokens);
  return session;
}

void SessionManager::EndEphemeral(Session& session) {
  if (session.slot < 0) return;
  pool_.Release(session.slot);
  session.slot = -1;
  --ephemeral_slabs_;
}

void SessionManager::Unreserve(std::vector<int>& slots) {
  for (const int slot : slots) pool_.Release(slot);
  ephemeral_slabs_ -= static_cast<int>(slots.size());
  slots.clear();
}

absl::Status SessionManager::CheckOwnerLimit(const std::string& owner) const {
  if (options_.owner_limit == nullptr) return absl::OkStatus();
  const int limit = options_.owner_limit(owner);
  const int sessions = table_.CountOf(owner);
  if (limit <= 0 || sessions < limit) return absl::OkStatus();
  return WithRetryAfter(WithReason(absl::ResourceExhaustedError(absl::StrCat(
                                       "this key has ", sessions, " sessions, and may have ", limit,
                                       "; delete one, or wait until an idle one expires")),
                                   kReasonSessionLimit),
                        std::clamp(NextExpiry() - Now(), kMinRetry, kMaxRetry));
}

absl::Status SessionManager::NoFreeSlab(int needed, int awaited) const {
  return WithRetryAfter(
      WithReason(
          absl::ResourceExhaustedError(absl::StrCat(
              "no room: ", needed, needed == 1 ? " state slot is" : " state slots are",
              " needed; of ", pool_.slots(), ", ", pool_.free_slots(), " are free",
              awaited > 0 ? " and awaited by earlier requests" : "", ", ", ephemeral_slabs_,
              " will be when running requests end, and named sessions have the others",
              parking_.enabled() ? ", for which the host has no room (--host-state-memory)" : "")),
          kReasonNoFreeSlab),
      std::clamp(NextExpiry() - Now(), kMinRetry, kMaxRetry));
}

absl::StatusOr<Session*> SessionManager::FindNamed(const SessionKey& key) const {
  MNEME_RETURN_IF_ERROR(ValidateSessionName(key.name, "name"));
  Session* session = Find(key);
  if (session == nullptr) {
    return WithReason(absl::NotFoundError(absl::StrCat("there is no session \"", key.name, "\"")),
                      kReasonNoSession);
  }
  return session;
}

absl::StatusOr<Session*> SessionManager::FindIdle(const SessionKey& key) const {
  MNEME_ASSIGN_OR_RETURN(Session * session, FindNamed(key));
  if (session->busy) {
    return WithPosition(
        WithReason(absl::FailedPreconditionError(absl::StrCat(
                       "session \"", key.name, "\" is busy: a request for it waits or runs")),
                   kReasonSessionBusy),
        session->position());
  }
  return session;
}

absl::StatusOr<Session*> SessionManager::Add(const SessionKey& key, absl::Duration ttl,
                                             int slabs_awaited, Session* parent) {
  MNEME_RETURN_IF_ERROR(ValidateSessionName(key.name, "name"));
  if (ttl < absl::ZeroDuration()) {
    return FieldError("ttl",
                      absl::StrCat("is ", absl::FormatDuration(ttl), ", expected at least 0"));
  }
  if (Find(key) != nullptr) {
    return WithReason(
        absl::AlreadyExistsError(absl::StrCat("there is a session \"", key.name, "\" already")),
        kReasonSessionExists);
  }
  if (IsClaimed(key)) {
    return WithReason(absl::FailedPreconditionError(absl::StrCat(
                          "a waiting request is about to create session \"", key.name, "\"")),
                      kReasonSessionBusy);
  }
  MNEME_RETURN_IF_ERROR(CheckOwnerLimit(key.owner));
  Session made = Make(key, ttl);
  if (parent != nullptr) {
    made.fed_tokens = parent->fed_tokens;
    made.fed = parent->fed;
    made.pending_token = parent->pending_token;
    made.has_text = parent->has_text;
    made.history = parent->history;
    made.evictions = parent->evictions;
  }
  if (slabs_awaited < free_slabs()) {
    made.slot = pool_.Acquire().value();
  } else if (!parking_.HasRoomForNewcomer(made.fed_tokens)) {
    return NoFreeSlab(/*needed=*/1, slabs_awaited);
  }
  return &Insert(std::move(made));
}

absl::StatusOr<SessionInfo> SessionManager::Create(const SessionKey& key, absl::Duration ttl,
                                                   int slabs_awaited) {
  MNEME_ASSIGN_OR_RETURN(const Session* session, Add(key, ttl, slabs_awaited, nullptr));
  PublishGauges();
  return Describe(*session);
}

absl::StatusOr<SessionInfo> SessionManager::Fork(const SessionKey& source, const SessionKey& target,
                                                 absl::Duration ttl, int slabs_awaited) {
  MNEME_ASSIGN_OR_RETURN(Session * parent, FindIdle(source));
  parking_.Await(*parent);
  MNEME_ASSIGN_OR_RETURN(Session * child, Add(target, ttl, slabs_awaited, parent));
  CopyState(*parent, *child);
  PublishGauges();
  return Describe(*child);
}

void SessionManager::CopyState(Session& parent, Session& child) {
  if (child.residence == Residence::kParked) {
    parking_.CopyToHost(parent, child);
  } else if (parent.residence == Residence::kParked) {
    parking_.CopyToSlab(parent, child);
  } else {
    pool_.Copy(parent.slot, child.slot, parent.fed_tokens);
  }
}

absl::Status SessionManager::Delete(const SessionKey& key) {
  MNEME_ASSIGN_OR_RETURN(Session * session, FindIdle(key));
  Remove(*session, SessionEnd::kDeleted);
  PublishGauges();
  return absl::OkStatus();
}

absl::StatusOr<Session*> SessionManager::FindWithSlab(const SessionKey& key) {
  MNEME_ASSIGN_OR_RETURN(Session * session, FindIdle(key));
  parking_.Await(*session);
  if (session->residence == Residence::kResident) return session;
  if (free_slabs() == 0 && !parking_.FreeSlab()) return NoFreeSlab(/*needed=*/1, /*awaited=*/0);
  parking_.Fetch(*session);
  parking_.Await(*session);
  return session;
}

absl::Status SessionManager::ReadState(const SessionKey& key, StateImage& image) {
  MNEME_ASSIGN_OR_RETURN(const Session* session, FindWithSlab(key));
  return pool_.Read(session->slot, session->fed_tokens, image);
}

absl::StatusOr<SessionInfo> SessionManager::Get(const SessionKey& key) const {
  MNEME_ASSIGN_OR_RETURN(const Session* session, FindNamed(key));
  return Describe(*session);
}

std::vector<SessionInfo> SessionManager::List(const std::optional<std::string>& owner,
                                              const std::string& name_prefix) const {
  std::vector<SessionInfo> infos;
  for (const Session* session : table_.List(owner, name_prefix)) {
    infos.push_back(Describe(*session));
  }
  return infos;
}

SessionInfo SessionManager::Describe(const Session& session) const {
  return {.key = session.key,
          .position = session.position(),
          .has_pending_token = session.pending_token.has_value(),
          .busy = session.busy,
          .created = session.created,
          .last_used = session.last_used,
          .ttl = session.ttl,
          .state_bytes = pool_.slab_bytes(),
          .residence = session.residence};
}

void SessionManager::Expire() {
  while (Session* session = table_.FirstExpired(Now())) {
    LogFields("session_expired")
        .Add("owner", session->key.owner)
        .Add("session", session->key.name)
        .Add("tokens", session->position())
        .Add("ttl", absl::FormatDuration(session->ttl))
        .Write(LogSeverity::kInfo);
    Remove(*session, SessionEnd::kExpired);
  }
}

void SessionManager::PublishGauges() {
  stats_.slabs_used.Set(pool_.used_slots());
  stats_.slabs_ephemeral.Set(ephemeral_slabs_);
  stats_.sessions.Set(table_.size());
  parking_.PublishGauges();
  stats_.slab_copy_bytes.Add(pool_.copied_bytes() - stats_.slab_copy_bytes.value());
}

absl::Status SessionManager::CheckIntegrity(std::span<const int> held, int claims) const {
  std::vector<int> owners(pool_.slots(), 0);
  table_.ForEach([&](const Session& session) {
    if (session.residence != Residence::kParked) ++owners.at(session.slot);
  });
  for (const int slot : held) ++owners.at(slot);
  for (int slot = 0; slot < pool_.slots(); ++slot) {
    if (owners[slot] != (pool_.taken(slot) ? 1 : 0)) {
      return absl::InternalError(absl::StrCat("slab ", slot, " is ",
                                              pool_.taken(slot) ? "taken" : "free", " and has ",
                                              owners[slot], " owners"));
    }
  }
  if (static_cast<int>(held.size()) != ephemeral_slabs_) {
    return absl::InternalError(
        absl::StrCat(held.size(), " slabs are ephemeral, counted ", ephemeral_slabs_));
  }
  if (claims != static_cast<int>(claimed_.size())) {
    return absl::InternalError(
        absl::StrCat(claimed_.size(), " sessions are claimed by ", claims, " requests"));
  }
  absl::Status busy;
  table_.ForEach([&](const Session& session) {
    if (session.busy != IsClaimed(session.key)) {
      busy = absl::InternalError(absl::StrCat("session \"", session.key.name, "\" is ",
                                              session.busy ? "busy" : "idle", " by mistake"));
    }
  });
  return busy;
}

}  // namespace mneme
