#include "engine/sessions/session_log.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "engine/idempotency.h"
#include "engine/status_payload.h"
#include "store/owner_limit.h"
#include "store/session_label.h"

namespace mneme {
namespace {

absl::Status NotDurable(const absl::Status& why) {
  if (const std::optional<OwnerLimit> limit = ExceededLimit(why); limit.has_value()) {
    return WithReason(
        OverLimit(*limit, absl::StrCat(why.message(), "; the session is as it was before")),
        *limit == OwnerLimit::kBytes ? kReasonStorageLimit : kReasonSessionLimit);
  }
  return WithReason(
      absl::Status(absl::IsNotFound(why) ? absl::StatusCode::kUnavailable : why.code(),
                   absl::StrCat("the session store could not make this durable, and the session is "
                                "as it was before: ",
                                why.message())),
      kReasonNotDurable);
}

// Whether the store says that the change itself is at fault.
bool IsRefusal(const absl::Status& status) {
  return absl::IsNotFound(status) || absl::IsAlreadyExists(status) || absl::IsOutOfRange(status);
}

absl::Status Lost(absl::string_view name, absl::string_view what) {
  return WithReason(
      absl::DataLossError(absl::StrCat("session \"", name, "\" ", what,
                                       "; a request that replaces what was lost begins a new one")),
      kReasonSessionLost);
}

}  // namespace

// What the store's thread leaves, and where.
struct SessionLog::Inbox {
  absl::Mutex mu;
  std::vector<std::pair<Done, absl::Status>> arrived ABSL_GUARDED_BY(mu);
  std::function<void()> wake;  // called under the lock, so that it can be taken away
};

SessionLog::SessionLog(SessionStore& store, Clock& clock, EngineStats& stats, Options options,
                       std::function<void()> wake)
    : store_(store),
      clock_(clock),
      stats_(stats),
      options_(std::move(options)),
      inbox_(std::make_shared<Inbox>()) {
  inbox_->wake = std::move(wake);
}

SessionLog::~SessionLog() {
  while (pending_ > 0) {
    Await();
    absl::MutexLock lock(&inbox_->mu);
    pending_ -= static_cast<int>(inbox_->arrived.size());
    inbox_->arrived.clear();
  }
}

bool SessionLog::CanGoOn(const SessionRecord& record) const { return CheckRecord(record).ok(); }

absl::Status SessionLog::CheckRecord(const SessionRecord& record) const {
  // One that is not durable is here, or parked, or it was lost on its way to the store.
  const bool is_nowhere = record.durability == Durability::kNone && !record.parked;
  if (record.status == SessionStatus::kLost || is_nowhere) {
    return WithPosition(
        Lost(record.name,
             record.durability == Durability::kNone
                 ? absl::StrCat("was lost: it was not durable; the position that the store noted "
                                "last is ",
                                record.position())
                 : absl::StrCat("was lost: it stood at position ", record.position(),
                                ", and its snapshots or its log were damaged")),
        record.position());
  }
  const absl::StatusOr<LoggedFacts> facts = LoggedFacts::Decode(record.facts);
  if (!facts.ok()) {
    return WithPosition(absl::IsDataLoss(facts.status())
                            ? Lost(record.name, facts.status().message())
                            : WithReason(facts.status(), kReasonOtherModel),
                        record.position());
  }
  if (record.model != options_.model) {
    return WithPosition(
        WithReason(
            absl::FailedPreconditionError(absl::StrCat(
                "session \"", record.name, "\" is of ",
                Described(record.model, store_.NameOfModel(record.model)), ", and this server has ",
                Described(options_.model, options_.model_name), ": it is left alone")),
            kReasonOtherModel),
        record.position());
  }
  if (facts->evictions > 0 || facts->may_have_evicted) {
    return CheckCapacity(record,
                         "engrams were evicted for want of room, so that with another room it "
                         "would be another session");
  }
  if (record.durability == Durability::kNone || record.first_turn > 0) {
    return CheckCapacity(record,
                         "its log does not lead back to its beginning, from where it could be fed "
                         "again with another room");
  }
  return absl::OkStatus();
}

absl::Status SessionLog::CheckCapacity(const SessionRecord& record, absl::string_view why) const {
  const absl::StatusOr<LoggedFacts> facts = LoggedFacts::Decode(record.facts);
  const int had = facts.ok() ? facts->engram_capacity : 0, has = options_.engram_capacity;
  if (had == 0 || had == has) return absl::OkStatus();
  return WithPosition(
      WithReason(absl::FailedPreconditionError(absl::StrCat(
                     "session \"", record.name, "\" was kept with room for ", had,
                     " engrams, and this server has room for ", has, " (--engram-capacity): ", why,
                     ". It stays as it is stored; a server with --engram-capacity ", had,
                     " goes on with it")),
                 kReasonEngramCapacity),
      record.position());
}

std::string SessionLog::Described(uint64_t model, absl::string_view name) const {
  const std::string identity = absl::StrCat(absl::Hex(model, absl::kZeroPad16));
  return name.empty()
             ? absl::StrCat("a model whose name is not known, of identity ", identity)
             : absl::StrCat("model \"", absl::CHexEscape(name), "\", of identity ", identity);
}

absl::Status SessionLog::CheckDoubt(const Session& session, const Request& request) {
  if (!session.doubted_at.has_value() || request.expected_position.has_value() ||
      request.replaces_lost || request.whole_history) {
    return absl::OkStatus();
  }
  const std::string before = *session.doubted_at > session.position()
                                 ? absl::StrCat("it stood at ", *session.doubted_at, " or farther")
                                 : "later turns, or what was recorded of idempotency keys, are "
                                   "gone, if there were any";
  return WithPosition(
      WithReason(absl::DataLossError(absl::StrCat(
                     "session \"", session.key.name, "\" stands at position ", session.position(),
                     " since the session store was damaged; ", before,
                     "; a request that expects this position, or replaces what was lost, goes on "
                     "from here")),
                 kReasonSessionLost),
      session.position());
}

absl::Status SessionLog::CheckBeginning(const SessionKey& key, bool replaces_lost) const {
  const std::optional<SessionRecord> record = Find(key);
  if (record.has_value()) {
    const absl::Status status = CheckRecord(*record);
    return absl::IsDataLoss(status) && replaces_lost ? absl::OkStatus() : status;
  }
  if (!replaces_lost && store_.names_in_doubt()) {
    return Lost(key.name,
                "may have existed: the session store was damaged, and does not know all names, "
                "until the server is started once with --trust-session-names");
  }
  return absl::OkStatus();
}

absl::Status SessionLog::Restore(const SessionRecord& record, Session& session) {
  MNEME_ASSIGN_OR_RETURN(const LoggedFacts facts, LoggedFacts::Decode(record.facts));
  session.key = {record.owner, record.name};
  session.id = static_cast<int64_t>(record.id);
  session.fed_tokens = record.fed_tokens;
  session.fed = facts.fed;
  session.opening = facts.opening;
  session.memory_seed = record.memory_seed;
  session.pending_token = record.pending_token;
  session.has_text = facts.has_text;
  session.evictions = facts.evictions;
  session.forgotten = facts.forgotten;
  session.residence = Residence::kStored;
  session.durability = record.durability;
  session.logged = true;
  session.parked = record.parked;
  session.doubted_at = record.doubted_at;
  session.turns = record.turns;
  session.rewinds = record.rewinds;
  session.created = record.created;
  session.last_used = record.last_used;
  session.ttl = record.ttl;
  return absl::OkStatus();
}

int64_t SessionLog::PositionOf(const SessionKey& key) const {
  const std::optional<SessionRecord> record = Find(key);
  return record.has_value() ? record->position() : 0;
}

SessionRecord SessionLog::NewRecord(const Session& session) const {
  return {.id = static_cast<uint64_t>(session.id),
          .owner = session.key.owner,
          .name = session.key.name,
          .durability = session.durability,
          .model = options_.model,
          .created = session.created,
          .last_used = session.last_used,
          .ttl = session.ttl,
          .memory_seed = session.memory_seed};
}

void SessionLog::AppendBeginning(const Session& session, std::vector<Change>& changes) const {
  const std::optional<SessionRecord> before = Find(session.key);
  if (before.has_value()) changes.push_back(DeleteSession{before->id});
  const std::string& name = options_.model_name;
  if (!name.empty() && store_.NameOfModel(options_.model) != name) {
    changes.push_back(NameModel{options_.model, name});
  }
}

void SessionLog::Create(Session& session, Done done) {
  std::vector<Change> changes;
  AppendBeginning(session, changes);
  changes.push_back(CreateSession{NewRecord(session)});
  session.logged = true;
  Submit(std::move(changes), ExpectCounted(std::move(done)), /*may_wait=*/false);
}

void SessionLog::Fork(const Session& parent, Session& child, Done done) {
  std::vector<Change> changes;
  AppendBeginning(child, changes);
  child.logged = true;
  child.turns = parent.turns;
  child.snapshot = parent.snapshot;
  child.snapshot_turn = parent.snapshot_turn;
  child.durability = parent.durability;
  child.parked = parent.parked;
  changes.push_back(ForkSession{static_cast<uint64_t>(parent.id), NewRecord(child)});
  Submit(std::move(changes), ExpectCounted(std::move(done)), /*may_wait=*/false);
}

void SessionLog::Delete(int64_t id, Done done) {
  behind_.erase(id);
  Submit({DeleteSession{static_cast<uint64_t>(id)}},
         ExpectCounted([waiting = std::move(done)](const absl::Status& status) {
           waiting(absl::IsNotFound(status) ? absl::OkStatus() : status);
         }),
         /*may_wait=*/false);
}

void SessionLog::AddTurn(Session& session, FedTurn turn, std::optional<RequestRecord> request,
                         Done done) {
  // Whoever has seen a name is told if it is lost, however soon; and nothing may go on behind a
  // turn from the snapshot in front of it.
  const bool must_be_told = !session.logged || session.parked;
  std::vector<Change> changes =
      ChangesOf(session, std::move(turn), std::move(request), /*imported_as=*/0);
  if (session.durability == Durability::kTurn || must_be_told) {
    return Submit(std::move(changes), ExpectCounted(std::move(done)), /*may_wait=*/false);
  }
  Submit(std::move(changes),
         Expect([this, id = session.id, key = session.key](const absl::Status& status) {
           if (status.ok()) return;
           LOG(ERROR) << "the position of "
                      << SessionLabel(key.name, key.owner, static_cast<uint64_t>(id))
                      << " is not stored: " << status.message();
           behind_.insert(id);
         }),
         /*may_wait=*/true);
  done(absl::OkStatus());
}

void SessionLog::CatchUp(Session& session) {
  if (behind_.contains(session.id)) AddTurn(session, {}, std::nullopt, IgnoreStatus);
}

void SessionLog::AddTurnWithoutPast(Session& session, FedTurn turn, int64_t answers_beyond,
                                    Done done, const std::byte* slab) {
  const auto id = static_cast<uint64_t>(session.id);
  const uint64_t snapshot = NewId();
  const bool is_here_alone = session.durability == Durability::kNone && !session.parked;
  std::vector<Change> changes = ChangesOf(session, std::move(turn), std::nullopt, snapshot);
  ForgetPast forget = {.session = id,
                       .snapshot = {},
                       .answers_beyond = answers_beyond,
                       .answered = static_cast<int>(KeyState::kFinished),
                       .erased = static_cast<int>(KeyState::kErased)};
  session.parked = session.durability == Durability::kNone;
  Done arrive = ExpectCounted([this, id = session.id, is_here_alone,
                               waiting = std::move(done)](const absl::Status& status) {
    if (!status.ok() && is_here_alone) behind_.insert(id);
    waiting(status);
  });
  session.snapshot = session.fed_tokens;
  session.snapshot_turn = session.turns;
  options_.states->WriteAlone(session, slab, snapshot, std::move(changes), std::move(forget),
                              std::move(arrive));
}

std::vector<Change> SessionLog::ChangesOf(Session& session, FedTurn turn,
                                          std::optional<RequestRecord> request,
                                          uint64_t imported_as) {
  const bool durable = session.durability == Durability::kTurn;
  session.parked = false;
  std::vector<Change> changes;
  const bool begins = behind_.erase(session.id) > 0 || !session.logged;
  if (begins) {
    AppendBeginning(session, changes);
    changes.push_back(CreateSession{NewRecord(session)});
    session.logged = true;
    session.cut.reset();
  }
  const auto id = static_cast<uint64_t>(session.id);
  if (session.cut != nullptr) {
    changes.push_back(
        CutSession{id, *session.cut, session.rewinds, static_cast<int>(KeyState::kUndone)});
    session.turns = session.cut->turns + (session.cut->part.has_value() ? 1 : 0);
    ++session.rewinds;
    session.cut.reset();
  }
  const LoggedFacts facts = {.fed = session.fed,
                             .opening = session.opening,
                             .has_text = session.has_text,
                             .evictions = session.evictions,
                             .arithmetic = options_.arithmetic,
                             .engram_capacity = options_.engram_capacity,
                             .forgotten = session.forgotten,
                             .prompted = turn.prompted,
                             .fed_pending = turn.fed_pending,
                             .dropped_pending = turn.dropped_pending,
                             .sent_before = turn.sent_before};
  mneme::AddTurn add = {.session = id, .fed_tokens = session.fed_tokens, .when = session.last_used};
  add.turn.begin = begins ? 0 : session.fed_tokens - static_cast<int64_t>(turn.tokens.size());
  add.turn.pending_token = session.pending_token;
  add.turn.facts = facts.Encode();
  if (durable) {
    if (options_.digest != nullptr && session.slot >= 0)
      add.turn.state_digest = options_.digest(session);
    if (turn.imported) add.turn.events.push_back(StateImported{imported_as, session.fed_tokens});
    if (!turn.tokens.empty()) {
      if (add.turn.begin == 0 && session.memory_seed.has_value()) {
        add.turn.events.push_back(MemorySeeded{*session.memory_seed});
      }
      add.turn.events.push_back(TokensFed{std::move(turn.tokens)});
    }
    if (turn.forgotten.has_value()) {
      add.turn.events.push_back(RangeForgotten{turn.forgotten->first, turn.forgotten->second});
    }
    add.request = std::move(request);
    if (add.request.has_value()) add.request->session = id;
    ++session.turns;
  }
  changes.push_back(std::move(add));
  changes.push_back(ChangeSession{.session = id, .ttl = session.ttl});
  return changes;
}

absl::Status SessionLog::health() const {
  const StoreStats stats = store_.stats();
  absl::Status health = stats.last_error;
  const auto add = [&health](absl::StatusCode code, absl::string_view fault) {
    health = health.ok() ? absl::Status(code, fault)
                         : absl::Status(health.code(), absl::StrCat(health.message(), "; ", fault));
  };
  if (options_.states != nullptr) {
    const absl::Status snapshots = options_.states->health();
    if (!snapshots.ok()) {
      add(snapshots.code(),
          absl::StrCat("snapshots of sessions are not written: ", snapshots.message()));
    }
  }
  if (stats.names_in_doubt) {
    add(absl::StatusCode::kDataLoss,
        "names of sessions were lost, so that requests for names that are not known are refused "
        "(SESSION_LOST), until the server is started once with --trust-session-names");
  }
  if (stats.damaged > 0) {
    add(absl::StatusCode::kDataLoss,
        absl::StrCat("damage was found since the server started, which the log names: ",
                     stats.damaged, " rows or files, ", stats.fallen_back,
                     " sessions that went back to an earlier position, ", stats.lost,
                     " that are lost (a start that finds none ends this)"));
  }
  return health;
}

absl::Status SessionLog::CheckStorage(const SessionKey& key, const Session* session) const {
  const absl::Status full = store_.KnownToBeFull();
  if (!full.ok()) return NotDurable(full);
  const auto record = session == nullptr ? std::nullopt : Find(key);
  const int64_t own = record.has_value() ? record->log_bytes + record->snapshot_bytes : 0;
  const absl::Status limit = store_.CheckLimit(key.owner, own);
  return limit.ok() ? limit : NotDurable(limit);
}

SessionLog::Done SessionLog::Expect(Done done, bool may_refuse) {
  ++pending_;
  return [inbox = inbox_, may_refuse, waiting = std::move(done)](const absl::Status& status) {
    absl::MutexLock lock(&inbox->mu);
    const bool is_told = status.ok() || (may_refuse && IsRefusal(status));
    inbox->arrived.emplace_back(waiting, is_told ? status : NotDurable(status));
    if (inbox->wake) inbox->wake();
  };
}

SessionLog::Done SessionLog::ExpectCounted(Done done, bool may_refuse) {
  return Expect(
      [this, begun = clock_.Monotonic(), may_refuse,
       waiting = std::move(done)](const absl::Status& status) {
        stats_.store_seconds.Observe(absl::ToDoubleSeconds(clock_.Monotonic() - begun));
        const bool is_refused =
            (may_refuse && IsRefusal(status)) || ExceededLimit(status).has_value();
        if (!status.ok() && !is_refused) stats_.store_failures.Add();
        waiting(status);
      },
      may_refuse);
}

void SessionLog::Submit(std::vector<Change> changes, Done arrive, bool may_wait) {
  const absl::Status queued = store_.Submit(std::move(changes), arrive, may_wait);
  if (!queued.ok()) arrive(queued);
}

bool SessionLog::Settle() {
  std::vector<std::pair<Done, absl::Status>> arrived;
  {
    absl::MutexLock lock(&inbox_->mu);
    arrived.swap(inbox_->arrived);
  }
  pending_ -= static_cast<int>(arrived.size());
  for (const auto& [done, status] : arrived) done(status);
  return !arrived.empty();
}

void SessionLog::Await() {
  absl::MutexLock lock(&inbox_->mu);
  const auto there = [this]() ABSL_SHARED_LOCKS_REQUIRED(inbox_->mu) {
    return !inbox_->arrived.empty();
  };
  inbox_->mu.Await(absl::Condition(&there));
}

}  // namespace mneme
