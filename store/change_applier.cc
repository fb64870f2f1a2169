#include "store/change_applier.h"

#include <algorithm>
#include <limits>
#include <set>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "store/owner_limit.h"
#include "store/session_rows.h"

namespace mneme {
namespace {

// For messages.
std::string OwnerHas(const SessionRecord& session) {
  return session.owner.empty() ? "callers without keys, who count as one, have"
                               : absl::StrCat("owner ", session.owner, " has");
}

}  // namespace

void StagedCommit::Add(StagedCommit&& other) {
  for (auto& [id, session] : other.sessions) sessions[id] = std::move(session);
  const auto append = [](auto& to, auto& from) {
    to.insert(to.end(), std::move_iterator(from.begin()), std::move_iterator(from.end()));
  };
  append(snapshots_added, other.snapshots_added);
  append(snapshots_dropped, other.snapshots_dropped);
  append(snapshots_damaged, other.snapshots_damaged);
  append(requests_added, other.requests_added);
  append(requests_dropped, other.requests_dropped);
  append(models, other.models);
  append(taken_over, other.taken_over);
  erase |= other.erase;
  erase_later |= other.erase_later;
  turns += other.turns;
  log_bytes += other.log_bytes;
}

absl::StatusOr<std::vector<SnapshotRecord>> SnapshotsOf(Catalogue& catalogue, uint64_t session) {
  std::vector<SnapshotRecord> snapshots;
  MNEME_RETURN_IF_ERROR(catalogue.Scan(
      RowKind::kSnapshot, session, "",
      [&](const RowKey& row, RecordReader values) -> absl::StatusOr<bool> {
        MNEME_ASSIGN_OR_RETURN(SnapshotRecord snapshot, DecodeSnapshot(values, row.Name()));
        snapshot.id = NumberOf(row.key);
        snapshots.push_back(snapshot);
        return true;
      }));
  std::stable_sort(
      snapshots.begin(), snapshots.end(),
      [](const SnapshotRecord& a, const SnapshotRecord& b) { return a.position < b.position; });
  return snapshots;
}

absl::StatusOr<std::vector<CheckpointRecord>> CheckpointsOf(Catalogue& catalogue,
                                                            uint64_t session) {
  std::vector<CheckpointRecord> checkpoints;
  MNEME_RETURN_IF_ERROR(catalogue.Scan(
      RowKind::kCheckpoint, session, "",
      [&](const RowKey& row, RecordReader values) -> absl::StatusOr<bool> {
        MNEME_ASSIGN_OR_RETURN(CheckpointRecord checkpoint, DecodeCheckpoint(values, row.Name()));
        checkpoint.name = row.key;
        checkpoints.push_back(std::move(checkpoint));
        return true;
      }));
  return checkpoints;
}

bool CanReach(const SessionRecord& session, const std::vector<SnapshotRecord>& snapshots,
              int64_t position) {
  if (position < 0 || position > session.fed_tokens) return false;
  if (session.durability == Durability::kTurn && session.first_turn == 0) return true;
  return std::any_of(snapshots.begin(), snapshots.end(), [&](const SnapshotRecord& snapshot) {
    return snapshot.position <= position && snapshot.turn >= session.first_turn;
  });
}

absl::Status ChangeApplier::Apply(const Change& change) {
  return std::visit([this](const auto& one) { return Do(one); }, change);
}

// --- Finding ---

std::optional<SessionRecord> ChangeApplier::Find(uint64_t id) const {
  for (const StagedCommit* staged : {static_cast<const StagedCommit*>(&staged_), &group_}) {
    const auto found = staged->sessions.find(id);
    if (found != staged->sessions.end()) return found->second;
  }
  return committed_.Find(id);
}

absl::StatusOr<SessionRecord> ChangeApplier::FindAny(uint64_t id) const {
  std::optional<SessionRecord> session = Find(id);
  if (!session.has_value()) return absl::NotFoundError(absl::StrCat("there is no session ", id));
  return *std::move(session);
}

absl::StatusOr<SessionRecord> ChangeApplier::FindLive(uint64_t id) const {
  MNEME_ASSIGN_OR_RETURN(SessionRecord session, FindAny(id));
  if (session.status == SessionStatus::kLive) return session;
  return absl::FailedPreconditionError(
      absl::StrCat(Described(session), " was lost at position ", session.position()));
}

absl::Status ChangeApplier::CheckNew(const SessionRecord& session) const {
  if (session.id == 0 || Find(session.id).has_value()) {
    return absl::AlreadyExistsError(absl::StrCat("the id ", session.id, " is another session's"));
  }
  const auto has_name = [&](const std::optional<SessionRecord>& other) {
    return other.has_value() && other->owner == session.owner && other->name == session.name;
  };
  bool taken = false;
  const std::optional<SessionRecord> before = committed_.Find(session.owner, session.name);
  if (before.has_value()) taken = has_name(Find(before->id));
  for (const StagedCommit* staged : {static_cast<const StagedCommit*>(&staged_), &group_}) {
    for (const auto& [id, other] : staged->sessions) taken |= has_name(other) && has_name(Find(id));
  }
  if (taken) {
    return absl::AlreadyExistsError(absl::StrCat("there is a session ", session.name, " already"));
  }
  if (limits_.sessions_per_owner > 0 &&
      UsageOf(session.owner).sessions >= limits_.sessions_per_owner) {
    return OverLimit(OwnerLimit::kSessions,
                     absl::StrCat(OwnerHas(session), " ", limits_.sessions_per_owner,
                                  " stored sessions, as many as allowed"));
  }
  return absl::OkStatus();
}

OwnerUsage ChangeApplier::UsageOf(const std::string& owner) const {
  OwnerUsage usage = committed_.UsageOf(owner);
  const auto add = [&](const std::optional<SessionRecord>& session, int sign) {
    if (!session.has_value() || session->owner != owner) return;
    usage.sessions += sign;
    usage.bytes += sign * session->stored_bytes();
  };
  for (const auto& [id, session] : group_.sessions) {
    if (staged_.sessions.contains(id)) continue;
    add(committed_.Find(id), -1);
    add(session, 1);
  }
  for (const auto& [id, session] : staged_.sessions) {
    add(committed_.Find(id), -1);
    add(session, 1);
  }
  return usage;
}

absl::Status ChangeApplier::CheckBytes(const SessionRecord& session, int64_t more) const {
  if (limits_.bytes_per_owner == 0) return absl::OkStatus();
  const int64_t used = UsageOf(session.owner).bytes;
  if (used + more <= limits_.bytes_per_owner) return absl::OkStatus();
  return OverLimit(
      OwnerLimit::kBytes,
      absl::StrCat(Described(session), ": ", OwnerHas(session), " ", used, " bytes stored of ",
                   limits_.bytes_per_owner, " allowed, ", more, " more do not fit"));
}

// --- Changes ---

absl::Status ChangeApplier::Do(const NameModel& change) {
  staged_.models.emplace_back(change.model, change.name);
  return catalogue_.Put({RowKind::kModel, 0, NumberKey(change.model)},
                        std::move(RecordWriter().Bytes(change.name)));
}

// Rows of sessions are written with the new identity when they change.
absl::Status ChangeApplier::Do(const TakeOverModel& change) {
  const RowKey row = {RowKind::kTakenOver, 0, NumberKey(change.before)};
  MNEME_ASSIGN_OR_RETURN(const std::optional<std::string> taken, catalogue_.Get(row));
  if (taken.has_value()) return absl::OkStatus();
  staged_.taken_over.push_back(change);
  return catalogue_.Put(row, std::move(RecordWriter().Fixed64(change.model)));
}

absl::Status ChangeApplier::Do(const CreateSession& change) {
  MNEME_RETURN_IF_ERROR(CheckNew(change.session));
  SessionRecord session = change.session;
  session.turns = session.first_turn = session.log_bytes = session.snapshot_bytes = 0;
  return PutSession(std::move(session));
}

absl::Status ChangeApplier::Do(const AddTurn& change) {
  MNEME_ASSIGN_OR_RETURN(SessionRecord session, FindLive(change.session));
  const bool durable = session.durability == Durability::kTurn;
  if (change.turn.begin != session.fed_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(Described(session), " stands at ",
                                                   session.fed_tokens, " tokens fed, the turn at ",
                                                   change.turn.begin));
  }
  if (durable ? change.fed_tokens != change.turn.end() : !change.turn.events.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Described(session), ": a turn to ", change.fed_tokens,
                     " tokens fed, whose events lead to ", change.turn.end()));
  }
  if (durable) {
    MNEME_RETURN_IF_ERROR(ErasePendingUnlessFed(session, change.turn));
    if (limits_.bytes_per_owner > 0 && change.fed_tokens > change.turn.begin) {
      const auto bytes = static_cast<int64_t>(Encode(change.turn).size());
      MNEME_RETURN_IF_ERROR(MakeRoom(session, bytes));
    }
    MNEME_RETURN_IF_ERROR(PutTurn(session, change.turn));
  }
  session.parked = false;
  if (change.fed_tokens > session.fed_tokens) session.doubted_at.reset();
  session.fed_tokens = change.fed_tokens;
  session.pending_token = change.turn.pending_token;
  session.state_digest = change.turn.state_digest;
  session.facts = change.turn.facts;
  session.last_used = change.when;
  if (change.request.has_value()) {
    MNEME_RETURN_IF_ERROR(PutRequest(session, *change.request));
  }
  ++staged_.turns;
  return PutSession(std::move(session));
}

absl::Status ChangeApplier::Do(const ChangeSession& change) {
  MNEME_ASSIGN_OR_RETURN(SessionRecord session, FindLive(change.session));
  if (change.ttl.has_value()) session.ttl = *change.ttl;
  if (change.last_used.has_value()) session.last_used = *change.last_used;
  if (change.lost) session.status = SessionStatus::kLost;
  return PutSession(std::move(session));
}

absl::StatusOr<int64_t> ChangeApplier::FedBefore(const SessionRecord& session, int64_t turn) {
  if (turn == session.turns) return session.fed_tokens;
  const RowKey row = TurnRow(session.id, turn);
  MNEME_ASSIGN_OR_RETURN(const std::optional<std::string> values, catalogue_.Get(row));
  if (!values.has_value()) return absl::DataLossError(absl::StrCat(row.Name(), ": is missing"));
  MNEME_ASSIGN_OR_RETURN(const Turn next, DecodeTurn(RecordReader(*values), row.Name()));
  return next.begin;
}

absl::Status ChangeApplier::CheckSnapshot(const SessionRecord& session,
                                          const SnapshotRecord& snapshot) {
  if (snapshot.turn < session.first_turn || snapshot.turn > session.turns) {
    return absl::OutOfRangeError(absl::StrCat(Described(session), ": a snapshot of turn ",
                                              snapshot.turn, ", its log has those from ",
                                              session.first_turn, " to ", session.turns));
  }
  MNEME_ASSIGN_OR_RETURN(const int64_t expected, FedBefore(session, snapshot.turn));
  if (snapshot.position == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(Described(session), ": a snapshot of ",
                                                 snapshot.position, " tokens after turn ",
                                                 snapshot.turn, ", expected ", expected));
}

absl::Status ChangeApplier::CheckBase(const SessionRecord& session,
                                      const SnapshotRecord& snapshot) {
  if (snapshot.base == 0) return absl::OkStatus();
  const RowKey row = SnapshotRow(session.id, snapshot.base);
  MNEME_ASSIGN_OR_RETURN(const std::optional<std::string> values, catalogue_.Get(row));
  if (values.has_value()) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(Described(session), ": snapshot ", snapshot.base,
                                          " is gone, which a new one goes on from"));
}

absl::Status ChangeApplier::Do(const AddSnapshot& change) {
  MNEME_ASSIGN_OR_RETURN(SessionRecord session, FindLive(change.session));
  SnapshotRecord snapshot = change.snapshot;
  if (!StillHolds(session, snapshot, change.rewinds)) {
    return absl::NotFoundError(absl::StrCat(Described(session),
                                            " was rewound since its state was copied, to before "
                                            "it"));
  }
  MNEME_RETURN_IF_ERROR(CheckSnapshot(session, snapshot));
  MNEME_RETURN_IF_ERROR(SetThere(session, snapshot));
  MNEME_RETURN_IF_ERROR(MakeRoom(session, snapshot.bytes));
  MNEME_RETURN_IF_ERROR(CheckBase(session, snapshot));
  MNEME_RETURN_IF_ERROR(PutSnapshot(session, snapshot));
  session.parked = session.durability == Durability::kNone;
  MNEME_RETURN_IF_ERROR(Compact(session));
  return PutSession(std::move(session));
}

absl::Status ChangeApplier::Do(const DropDamagedSnapshot& change) {
  std::vector<std::pair<uint64_t, SnapshotRecord>> users;  // forks may share it
  std::set<uint64_t> useless = {change.snapshot};          // and others go on from it
  MNEME_RETURN_IF_ERROR(catalogue_.ScanAll(
      RowKind::kSnapshot, [&](const RowKey& row, RecordReader values) -> absl::StatusOr<bool> {
        MNEME_ASSIGN_OR_RETURN(SnapshotRecord snapshot, DecodeSnapshot(values, row.Name()));
        snapshot.id = NumberOf(row.key);
        users.emplace_back(row.session, snapshot);
        return true;
      }));
  // A base is older than what goes on from it.
  std::stable_sort(users.begin(), users.end(),
                   [](const auto& a, const auto& b) { return a.second.id < b.second.id; });
  std::erase_if(users, [&](const auto& user) {
    if (useless.contains(user.second.base)) useless.insert(user.second.id);
    return !useless.contains(user.second.id);
  });
  for (const auto& [id, snapshot] : users) {
    MNEME_ASSIGN_OR_RETURN(SessionRecord session, FindAny(id));
    MNEME_RETURN_IF_ERROR(DropSnapshot(session, snapshot));
    MNEME_ASSIGN_OR_RETURN(const std::vector<SnapshotRecord> left, SnapshotsOf(catalogue_, id));
    if (!CanReach(session, left, session.fed_tokens)) session.status = SessionStatus::kLost;
    MNEME_RETURN_IF_ERROR(PutSession(std::move(session)));
  }
  staged_.snapshots_damaged.push_back(change.snapshot);
  return absl::OkStatus();
}

absl::Status ChangeApplier::Do(const DeleteSession& change) {
  MNEME_ASSIGN_OR_RETURN(SessionRecord session, FindAny(change.session));
  MNEME_ASSIGN_OR_RETURN(const std::vector<SnapshotRecord> snapshots,
                         SnapshotsOf(catalogue_, session.id));
  for (const SnapshotRecord& snapshot : snapshots) {
    MNEME_RETURN_IF_ERROR(DropSnapshot(session, snapshot));
  }
  MNEME_RETURN_IF_ERROR(DropRequests(session.id, std::numeric_limits<int64_t>::min()));
  MNEME_RETURN_IF_ERROR(catalogue_.DeleteAll(RowKind::kTurn, session.id));
  MNEME_RETURN_IF_ERROR(catalogue_.DeleteAll(RowKind::kCheckpoint, session.id));
  MNEME_RETURN_IF_ERROR(catalogue_.Delete(SessionRow(session.id)));
  staged_.sessions[session.id] = std::nullopt;
  staged_.erase = true;
  return absl::OkStatus();
}

}  // namespace mneme
