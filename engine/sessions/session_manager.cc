#include "engine/sessions/session_manager.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
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
      parking_(pool, options_.host, options_.states, clock, stats, options_.wake,
               [this](Session& session) { options_.log->CatchUp(session); }),
      turn_snapshots_(options_.turn_snapshot_bytes_per_second) {
  stats_.slabs_total.Set(pool_.slots());
  PublishGauges();
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
  if (session->residence == Residence::kStored) {
    DropIfUnused(key);
    return nullptr;
  }
  return session;
}

Session* SessionManager::Recall(const SessionKey& key) {
  NoteDoubts();
  Session* session = Find(key);
  if (session != nullptr || options_.log == nullptr || key.name.empty()) return session;
  const std::optional<SessionRecord> record = options_.log->Find(key);
  if (!record.has_value() || !options_.log->CanGoOn(*record) || IsClaimed(key)) return nullptr;
  Session stored;
  stored.history = TokenHistory(options_.history_tokens);
  if (!SessionLog::Restore(*record, stored).ok()) return nullptr;
  return &table_.Insert(std::move(stored), Now());
}

void SessionManager::DropIfUnused(const SessionKey& key) {
  Session* session = Find(key);
  if (session == nullptr || session->busy || session->residence != Residence::kStored) return;
  table_.Remove(*session);
}

Durability SessionManager::default_durability() const {
  return options_.log == nullptr ? Durability::kNone : options_.log->options().durability;
}

absl::Status SessionManager::CheckBeginning(const SessionKey& key, bool replaces_lost) const {
  if (options_.log == nullptr) return absl::OkStatus();
  return options_.log->CheckBeginning(key, replaces_lost);
}

absl::Status SessionManager::CheckStorage(const SessionKey& key, const Session* session,
                                          std::optional<Durability> durability) const {
  if (options_.log == nullptr) return absl::OkStatus();
  const Durability kept =
      session == nullptr ? durability.value_or(default_durability()) : session->durability;
  return kept == Durability::kTurn ? options_.log->CheckStorage(key, session) : absl::OkStatus();
}

Session& SessionManager::CreateClaimed(const SessionKey& key, const NewSession& options) {
  CHECK(IsClaimed(key)) << "session \"" << key.name << "\" is not claimed";
  Session made = Make(key, options.ttl);
  made.durability = options.durability.value_or(default_durability());
  made.memory_seed = options.memory_seed;
  made.slot = pool_.Acquire().value();
  Session& session = Insert(std::move(made));
  table_.MarkBusy(session);
  parking_.Use(session);
  return session;
}

void SessionManager::Remove(Session& session, SessionEnd why) {
  stats_.ended_by(why).Add();
  TakeBack(session);
}

void SessionManager::TakeBack(Session& session) {
  parking_.Remove(session);
  table_.Remove(session);
}

Session SessionManager::Make(const SessionKey& key, absl::Duration ttl) {
  Session session;
  session.key = key;
  const bool is_logged = options_.log != nullptr && !key.name.empty();
  session.id = is_logged ? static_cast<int64_t>(options_.log->NewId()) : ++made_;
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
  } else if (inserted.residence != Residence::kStored) {
    parking_.AddWithHost(inserted);
  }
  return inserted;
}

absl::Status SessionManager::CheckOwnerLimit(const std::string& owner) const {
  if (options_.owner_limit == nullptr) return absl::OkStatus();
  const int limit = options_.owner_limit(owner);
  const int64_t sessions = SessionsOf(owner);
  if (limit <= 0 || sessions < limit) return absl::OkStatus();
  // Stored sessions do not expire; they may be deleted for their age.
  const bool expires = options_.log == nullptr;
  const bool grows_old = !expires && options_.retention != absl::InfiniteDuration();
  const absl::Status full =
      WithReason(absl::ResourceExhaustedError(absl::StrCat(
                     "this key has ", sessions, sessions == 1 ? " session" : " sessions",
                     ", and may have ", limit, "; delete one",
                     expires     ? ", or wait until an idle one expires"
                     : grows_old ? ", or wait until one that nobody uses is deleted for its age "
                                   "(--session-retention)"
                                 : "")),
                 kReasonSessionLimit);
  if (!expires || NextExpiry() == absl::InfiniteDuration()) return full;
  return WithRetryAfter(full, std::clamp(NextExpiry() - Now(), kMinRetry, kMaxRetry));
}

std::string SessionManager::WhyNotParked() const {
  if (!parking_.enabled()) return "";
  if (!parking_.stores()) return ", for which the host has no room (--host-state-memory)";
  return parking_.refusal().ok()
             ? ", which cannot be parked now"
             : absl::StrCat(", and those that are not durable stay, as the store refuses them: ",
                            parking_.refusal().message());
}

absl::Status SessionManager::NoFreeSlab(int needed, int awaited) const {
  return WithRetryAfter(
      WithReason(absl::ResourceExhaustedError(absl::StrCat(
                     "no room: ", needed, needed == 1 ? " state slot is" : " state slots are",
                     " needed; of ", pool_.slots(), ", ", pool_.free_slots(), " are free",
                     awaited > 0 ? " and awaited by earlier requests" : "", ", ", ephemeral_slabs_,
                     " will be when running requests end, and named sessions have the others",
                     WhyNotParked())),
                 kReasonNoFreeSlab),
      std::clamp(NextExpiry() - Now(), kMinRetry, kMaxRetry));
}

absl::StatusOr<Session*> SessionManager::FindNamed(const SessionKey& key) {
  MNEME_RETURN_IF_ERROR(ValidateSessionName(key.name, "name"));
  Session* session = Recall(key);
  if (session == nullptr) {
    // One that is just being deleted was not lost.
    if (!IsClaimed(key)) MNEME_RETURN_IF_ERROR(CheckBeginning(key, /*replaces_lost=*/false));
    return WithReason(absl::NotFoundError(absl::StrCat("there is no session \"", key.name, "\"")),
                      kReasonNoSession);
  }
  return session;
}

absl::StatusOr<Session*> SessionManager::FindIdle(const SessionKey& key) {
  MNEME_ASSIGN_OR_RETURN(Session * session, FindNamed(key));
  if (session->busy || parking_.IsBeingFetchedFromStore(*session)) {
    return WithPosition(
        WithReason(absl::FailedPreconditionError(absl::StrCat(
                       "session \"", key.name, "\" is busy: a request for it waits or runs")),
                   kReasonSessionBusy),
        session->position());
  }
  return session;
}

absl::Status SessionManager::CheckNew(const SessionKey& key, const NewSession& options) {
  MNEME_RETURN_IF_ERROR(ValidateSessionName(key.name, "name"));
  if (Recall(key) != nullptr) {
    return WithReason(
        absl::AlreadyExistsError(absl::StrCat("there is a session \"", key.name, "\" already")),
        kReasonSessionExists);
  }
  if (IsClaimed(key)) {
    return WithReason(absl::FailedPreconditionError(absl::StrCat(
                          "a waiting request is about to create session \"", key.name, "\"")),
                      kReasonSessionBusy);
  }
  MNEME_RETURN_IF_ERROR(CheckBeginning(key, options.replaces_lost));
  if (options.ttl < absl::ZeroDuration()) {
    return FieldError(
        "ttl", absl::StrCat("is ", absl::FormatDuration(options.ttl), ", expected at least 0"));
  }
  return CheckOwnerLimit(key.owner);
}

absl::StatusOr<Session*> SessionManager::Add(const SessionKey& key, const NewSession& options,
                                             int slabs_awaited, Session* parent) {
  MNEME_RETURN_IF_ERROR(CheckNew(key, options));
  Session made = Make(key, options.ttl);
  made.durability = options.durability.value_or(default_durability());
  made.memory_seed = options.memory_seed;
  if (parent != nullptr) {
    made.durability = parent->durability;
    made.memory_seed = parent->memory_seed;
    made.fed_tokens = parent->fed_tokens;
    made.fed = parent->fed;
    made.opening = parent->opening;
    made.path = parent->path;
    made.doubted_at = parent->doubted_at;
    made.pending_token = parent->pending_token;
    made.has_text = parent->has_text;
    made.history = parent->history;
    made.evictions = parent->evictions;
    made.forgotten = parent->forgotten;
  }
  const bool rests_in_store = parent != nullptr && parent->residence == Residence::kStored;
  const bool may_rest_there =
      options_.log != nullptr && (rests_in_store || made.durability == Durability::kTurn);
  if (!rests_in_store && slabs_awaited < free_slabs()) {
    made.slot = pool_.Acquire().value();
  } else if (!rests_in_store && parking_.HasRoomForNewcomer(made.fed_tokens)) {
    made.residence = Residence::kParked;
  } else if (may_rest_there) {
    made.residence = Residence::kStored;
  } else {
    return NoFreeSlab(/*needed=*/1, slabs_awaited);
  }
  return &Insert(std::move(made));
}

absl::StatusOr<SessionInfo> SessionManager::Create(const SessionKey& key, const NewSession& options,
                                                   int slabs_awaited, Done done) {
  MNEME_ASSIGN_OR_RETURN(Session * session, Add(key, options, slabs_awaited, nullptr));
  PublishGauges();
  SessionInfo info = Describe(*session);
  if (options_.log == nullptr) {
    done(absl::OkStatus());
  } else {
    options_.log->Create(*session, Claiming(key, std::move(done)));
  }
  return info;
}

absl::StatusOr<SessionInfo> SessionManager::Fork(const SessionKey& source, const SessionKey& target,
                                                 absl::Duration ttl, int slabs_awaited, Done done) {
  MNEME_ASSIGN_OR_RETURN(Session * parent, FindIdle(source));
  parking_.Await(*parent);
  MNEME_ASSIGN_OR_RETURN(Session * child, Add(target, ttl, slabs_awaited, parent));
  CopyState(*parent, *child);
  PublishGauges();
  SessionInfo info = Describe(*child);
  if (options_.log == nullptr) {
    done(absl::OkStatus());
  } else {
    options_.log->Fork(*parent, *child, Claiming(target, std::move(done)));
    DropIfUnused(source);
  }
  return info;
}

bool SessionManager::RestsInStore(const SessionKey& key) {
  if (options_.log == nullptr || IsClaimed(key)) return false;
  const Session* session = Recall(key);
  return session != nullptr && session->residence != Residence::kResident;
}

void SessionManager::CopyState(Session& parent, Session& child) {
  if (child.residence == Residence::kStored) return;  // the log has it
  if (child.residence == Residence::kParked) {
    parking_.CopyToHost(parent, child);
  } else if (parent.residence == Residence::kParked) {
    parking_.CopyToSlab(parent, child);
  } else {
    pool_.Copy(parent.slot, child.slot, parent.fed_tokens);
  }
}

absl::Status SessionManager::Delete(const SessionKey& key, Done done) {
  const absl::StatusOr<Session*> session = FindIdle(key);
  int64_t id = 0;
  if (session.ok()) {
    id = (*session)->id;
    Remove(**session, SessionEnd::kDeleted);
    PublishGauges();
  } else {
    // What cannot go on can be deleted all the same.
    const std::optional<SessionRecord> record =
        options_.log == nullptr || Find(key) != nullptr || IsClaimed(key) ? std::nullopt
                                                                          : options_.log->Find(key);
    if (!record.has_value()) return session.status();
    id = static_cast<int64_t>(record->id);
  }
  if (options_.log == nullptr) {
    done(absl::OkStatus());
  } else {
    options_.log->Delete(id, Claiming(key, std::move(done)));
  }
  return absl::OkStatus();
}

absl::StatusOr<Session*> SessionManager::FindWithSlab(const SessionKey& key) {
  MNEME_ASSIGN_OR_RETURN(Session * session, FindIdle(key));
  parking_.Await(*session);
  if (session->residence == Residence::kResident) return session;
  if (session->residence != Residence::kParked) {
    return WithReason(absl::FailedPreconditionError(absl::StrCat(
                          "session \"", key.name, "\" rests in the store, or goes there")),
                      kReasonSessionBusy);
  }
  if (free_slabs() == 0 && !parking_.FreeSlab()) return NoFreeSlab(/*needed=*/1, /*awaited=*/0);
  parking_.Fetch(*session);
  parking_.Await(*session);
  return session;
}

absl::Status SessionManager::ReadState(const SessionKey& key, StateImage& image) {
  MNEME_ASSIGN_OR_RETURN(const Session* session, FindWithSlab(key));
  return pool_.Read(session->slot, session->fed_tokens, image);
}

absl::StatusOr<SessionInfo> SessionManager::Get(const SessionKey& key) {
  MNEME_ASSIGN_OR_RETURN(const Session* session, FindNamed(key));
  SessionInfo info = Describe(*session);
  DropIfUnused(key);
  return info;
}

SessionsHere SessionManager::ListHere(const std::optional<std::string>& owner,
                                      const std::string& name_prefix) {
  NoteDoubts();
  SessionsHere here = {.claimed = claimed_, .usage = UsageOf(owner)};
  for (const Session* session : table_.List(owner, name_prefix)) {
    here.sessions.push_back(Describe(*session));
  }
  return here;
}

Residence SessionManager::ResidenceOf(const SessionRecord& record) const {
  const absl::Status status = options_.log->CheckRecord(record);
  if (absl::IsDataLoss(status)) return Residence::kLost;
  // One that another room for engrams keeps from going on is this model's all the same.
  return ReasonOf(status) == kReasonOtherModel ? Residence::kOtherModel : Residence::kStored;
}

void SessionManager::NoteDoubts() {
  if (options_.log == nullptr) return;
  const SessionStore& store = options_.log->store();
  const int64_t mended = store.times_mended();
  if (mended == times_mended_) return;
  times_mended_ = mended;
  table_.ForEachToChange([&](Session& session) {
    if (!session.logged) return;
    const std::optional<SessionRecord> record = store.Find(static_cast<uint64_t>(session.id));
    if (record.has_value() && record->doubted_at.has_value()) {
      session.doubted_at = record->doubted_at;
    }
  });
}

SessionInfo SessionManager::Describe(const SessionRecord& record) const {
  const Residence residence = ResidenceOf(record);
  return {.key = {record.owner, record.name},
          .position = record.position(),
          .has_pending_token = record.pending_token.has_value(),
          .created = record.created,
          .last_used = record.last_used,
          .ttl = record.ttl,
          .memory_seed = record.memory_seed,
          .state_bytes = residence == Residence::kStored ? pool_.session_bytes() : 0,
          .residence = residence,
          .durability = record.durability,
          .may_have_been_at = record.doubted_at};
}

SessionInfo SessionManager::Describe(const Session& session) const {
  return {.key = session.key,
          .position = session.position(),
          .has_pending_token = session.pending_token.has_value(),
          .busy = session.busy,
          .created = session.created,
          .last_used = session.last_used,
          .ttl = session.ttl,
          .memory_seed = session.memory_seed,
          .state_bytes = pool_.session_bytes(),
          .residence = session.residence,
          .durability = options_.log == nullptr ? std::nullopt
                                                : std::optional<Durability>(session.durability),
          .may_have_been_at = session.doubted_at};
}

}  // namespace mneme
