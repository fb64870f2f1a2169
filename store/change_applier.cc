#include "store/change_applier.h"

#include <algorithm>
#include <limits>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

RowKey SessionRow(uint64_t session) { return {.kind = RowKind::kSession, .session = session}; }
RowKey TurnRow(uint64_t session, int64_t turn) {
  return {RowKind::kTurn, session, NumberKey(static_cast<uint64_t>(turn))};
}
RowKey SnapshotRow(uint64_t session, uint64_t snapshot) {
  return {RowKind::kSnapshot, session, NumberKey(snapshot)};
}

std::string Described(const SessionRecord& session) {
  return absl::StrCat("session ", session.name, " (", session.id, ")");
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
  erase |= other.erase;
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
    return absl::ResourceExhaustedError(absl::StrCat("owner ", session.owner, " has ",
                                                     limits_.sessions_per_owner,
                                                     " stored sessions, as many as allowed"));
  }
  return absl::OkStatus();
}

OwnerUsage ChangeApplier::UsageOf(const std::string& owner) const {
  OwnerUsage usage = committed_.UsageOf(owner);
  const auto add = [&](const std::optional<SessionRecord>& session, int sign) {
    if (!session.has_value() || session->owner != owner) return;
    usage.sessions += sign;
    usage.bytes += sign * (session->log_bytes + session->snapshot_bytes);
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
  return absl::ResourceExhaustedError(absl::StrCat(
      Described(session), ": owner ", session.owner, " has ", used, " bytes stored of ",
      limits_.bytes_per_owner, " allowed, ", more, " more do not fit"));
}

// --- Rows ---

absl::Status ChangeApplier::PutSession(SessionRecord session) {
  MNEME_RETURN_IF_ERROR(catalogue_.Put(SessionRow(session.id), Encode(session)));
  const uint64_t id = session.id;
  staged_.sessions[id] = std::move(session);
  return absl::OkStatus();
}

absl::Status ChangeApplier::PutTurn(SessionRecord& session, const Turn& turn) {
  RecordWriter values = Encode(turn);
  const int64_t bytes = static_cast<int64_t>(values.size());
  MNEME_RETURN_IF_ERROR(catalogue_.Put(TurnRow(session.id, session.turns), std::move(values)));
  ++session.turns;
  session.log_bytes += bytes;
  staged_.log_bytes += bytes;
  return absl::OkStatus();
}

absl::Status ChangeApplier::PutRequest(const SessionRecord& session, const RequestRecord& request) {
  const RowKey row = {RowKind::kRequest, session.id, RequestKey(request.owner, request.key)};
  const RowKey index = {RowKind::kRequestSession, 0, row.key};
  MNEME_ASSIGN_OR_RETURN(const std::optional<std::string> before, catalogue_.Get(index));
  if (before.has_value()) {  // its last use was forgotten by the engine
    const RowKey last = {RowKind::kRequest, RecordReader(*before).Varint(), row.key};
    MNEME_RETURN_IF_ERROR(catalogue_.Delete(last));
    staged_.requests_dropped.push_back(last);
  }
  MNEME_RETURN_IF_ERROR(catalogue_.Put(row, Encode(request)));
  MNEME_RETURN_IF_ERROR(
      catalogue_.Put(index, std::move(RecordWriter().Varint(session.id).Varint(sequence_))));
  staged_.requests_added.push_back(row);
  return absl::OkStatus();
}

absl::Status ChangeApplier::DropRequests(uint64_t session, int64_t beyond_position) {
  std::vector<RowKey> rows;
  MNEME_RETURN_IF_ERROR(catalogue_.Scan(
      RowKind::kRequest, session, "",
      [&](const RowKey& row, RecordReader values) -> absl::StatusOr<bool> {
        MNEME_ASSIGN_OR_RETURN(const RequestRecord request, DecodeRequest(values, row.Name()));
        if (request.position > beyond_position) rows.push_back(row);
        return true;
      }));
  for (const RowKey& row : rows) {
    MNEME_RETURN_IF_ERROR(catalogue_.Delete(row));
    MNEME_RETURN_IF_ERROR(catalogue_.Delete({RowKind::kRequestSession, 0, row.key}));
    staged_.requests_dropped.push_back(row);
  }
  return absl::OkStatus();
}

absl::Status ChangeApplier::PutSnapshot(SessionRecord& session, const SnapshotRecord& snapshot) {
  MNEME_RETURN_IF_ERROR(catalogue_.Put(SnapshotRow(session.id, snapshot.id), Encode(snapshot)));
  session.snapshot_bytes += snapshot.bytes;
  staged_.snapshots_added.push_back(snapshot.id);
  return absl::OkStatus();
}

absl::Status ChangeApplier::DropSnapshot(SessionRecord& session, const SnapshotRecord& snapshot) {
  MNEME_RETURN_IF_ERROR(catalogue_.Delete(SnapshotRow(session.id, snapshot.id)));
  session.snapshot_bytes -= snapshot.bytes;
  staged_.snapshots_dropped.push_back(snapshot.id);
  return absl::OkStatus();
}

absl::Status ChangeApplier::DropTurns(SessionRecord& session, int64_t begin, int64_t end) {
  int64_t bytes = 0;
  MNEME_RETURN_IF_ERROR(
      catalogue_.Scan(RowKind::kTurn, session.id, NumberKey(static_cast<uint64_t>(begin)),
                      [&](const RowKey& row, const RecordReader& values) -> absl::StatusOr<bool> {
                        if (NumberOf(row.key) >= static_cast<uint64_t>(end)) return false;
                        bytes += static_cast<int64_t>(values.size());
                        return true;
                      }));
  for (int64_t turn = begin; turn < end; ++turn) {
    MNEME_RETURN_IF_ERROR(catalogue_.Delete(TurnRow(session.id, turn)));
  }
  session.log_bytes -= bytes;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Turn>> ChangeApplier::Turns(const SessionRecord& session) {
  std::vector<Turn> turns;
  MNEME_RETURN_IF_ERROR(
      catalogue_.Scan(RowKind::kTurn, session.id, "",
                      [&](const RowKey& row, RecordReader values) -> absl::StatusOr<bool> {
                        MNEME_ASSIGN_OR_RETURN(Turn turn, DecodeTurn(values, row.Name()));
                        turns.push_back(std::move(turn));
                        return true;
                      }));
  if (static_cast<int64_t>(turns.size()) == session.turns - session.first_turn) return turns;
  return absl::DataLossError(absl::StrCat(Described(session), ": its log has ", turns.size(),
                                          " turns, expected ", session.turns - session.first_turn));
}

absl::Status ChangeApplier::Compact(SessionRecord& session) {
  MNEME_ASSIGN_OR_RETURN(const std::vector<SnapshotRecord> snapshots,
                         SnapshotsOf(catalogue_, session.id));
  MNEME_ASSIGN_OR_RETURN(const std::vector<CheckpointRecord> checkpoints,
                         CheckpointsOf(catalogue_, session.id));
  const size_t newest = session.durability == Durability::kTurn ? 2 : 1;
  std::optional<int64_t> oldest_turn;
  for (size_t i = 0; i < snapshots.size(); ++i) {
    const bool last = i + 1 == snapshots.size();
    const int64_t next = last ? std::numeric_limits<int64_t>::max() : snapshots[i + 1].position;
    const bool needed =
        i + newest >= snapshots.size() ||
        std::any_of(checkpoints.begin(), checkpoints.end(), [&](const CheckpointRecord& one) {
          return snapshots[i].position <= one.position && one.position < next;
        });
    if (!needed) {
      MNEME_RETURN_IF_ERROR(DropSnapshot(session, snapshots[i]));
    } else if (!oldest_turn.has_value()) {
      oldest_turn = snapshots[i].turn;
    }
  }
  // One snapshot alone may turn out to be damaged: the log stays whole behind it.
  if (snapshots.size() < 2 || session.log_bytes <= limits_.log_bytes_per_session) {
    return absl::OkStatus();
  }
  // Nor may checkpoints lose what leads to them.
  for (const CheckpointRecord& one : checkpoints) {
    if (one.position < snapshots.front().position) return absl::OkStatus();
  }
  MNEME_RETURN_IF_ERROR(DropTurns(session, session.first_turn, *oldest_turn));
  session.first_turn = *oldest_turn;
  return absl::OkStatus();
}

// --- Changes ---

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
    const int64_t before = session.log_bytes;
    MNEME_RETURN_IF_ERROR(PutTurn(session, change.turn));
    MNEME_RETURN_IF_ERROR(CheckBytes(session, session.log_bytes - before));
  }
  session.parked = false;
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
  if (change.parked.has_value()) session.parked = *change.parked;
  return PutSession(std::move(session));
}

absl::Status ChangeApplier::Do(const AddSnapshot& change) {
  MNEME_ASSIGN_OR_RETURN(SessionRecord session, FindLive(change.session));
  const SnapshotRecord& snapshot = change.snapshot;
  int64_t expected = session.fed_tokens;
  if (snapshot.turn < session.first_turn || snapshot.turn > session.turns) {
    return absl::OutOfRangeError(absl::StrCat(Described(session), ": a snapshot of turn ",
                                              snapshot.turn, ", its log has those from ",
                                              session.first_turn, " to ", session.turns));
  }
  if (snapshot.turn < session.turns) {
    const RowKey row = TurnRow(session.id, snapshot.turn);
    MNEME_ASSIGN_OR_RETURN(const std::optional<std::string> values, catalogue_.Get(row));
    if (!values.has_value()) return absl::DataLossError(absl::StrCat(row.Name(), ": is missing"));
    MNEME_ASSIGN_OR_RETURN(const Turn next, DecodeTurn(RecordReader(*values), row.Name()));
    expected = next.begin;
  }
  if (snapshot.position != expected) {
    return absl::InvalidArgumentError(absl::StrCat(Described(session), ": a snapshot of ",
                                                   snapshot.position, " tokens after turn ",
                                                   snapshot.turn, ", expected ", expected));
  }
  MNEME_RETURN_IF_ERROR(CheckBytes(session, snapshot.bytes));
  MNEME_RETURN_IF_ERROR(PutSnapshot(session, snapshot));
  session.parked = session.durability == Durability::kNone;
  MNEME_RETURN_IF_ERROR(Compact(session));
  return PutSession(std::move(session));
}

absl::Status ChangeApplier::Do(const DropDamagedSnapshot& change) {
  std::vector<std::pair<uint64_t, SnapshotRecord>> users;  // forks may share it
  MNEME_RETURN_IF_ERROR(catalogue_.ScanAll(
      RowKind::kSnapshot, [&](const RowKey& row, RecordReader values) -> absl::StatusOr<bool> {
        if (NumberOf(row.key) != change.snapshot) return true;
        MNEME_ASSIGN_OR_RETURN(SnapshotRecord snapshot, DecodeSnapshot(values, row.Name()));
        snapshot.id = change.snapshot;
        users.emplace_back(row.session, snapshot);
        return true;
      }));
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

absl::Status ChangeApplier::Do(const AddCheckpoint& change) {
  MNEME_ASSIGN_OR_RETURN(const SessionRecord session, FindLive(change.session));
  MNEME_ASSIGN_OR_RETURN(const std::vector<SnapshotRecord> snapshots,
                         SnapshotsOf(catalogue_, session.id));
  const CheckpointRecord& checkpoint = change.checkpoint;
  if (!CanReach(session, snapshots, checkpoint.position)) {
    return absl::OutOfRangeError(
        absl::StrCat(Described(session), ": position ", checkpoint.position, " is not in its log"));
  }
  const RowKey row = {RowKind::kCheckpoint, session.id, checkpoint.name};
  MNEME_ASSIGN_OR_RETURN(const std::optional<std::string> before, catalogue_.Get(row));
  if (before.has_value()) {
    return absl::AlreadyExistsError(
        absl::StrCat(Described(session), " has a checkpoint ", checkpoint.name, " already"));
  }
  return catalogue_.Put(row, Encode(checkpoint));
}

absl::Status ChangeApplier::Do(const DropCheckpoint& change) {
  MNEME_ASSIGN_OR_RETURN(SessionRecord session, FindAny(change.session));
  const RowKey row = {RowKind::kCheckpoint, session.id, change.name};
  MNEME_ASSIGN_OR_RETURN(const std::optional<std::string> before, catalogue_.Get(row));
  if (!before.has_value()) {
    return absl::NotFoundError(
        absl::StrCat(Described(session), " has no checkpoint ", change.name));
  }
  MNEME_RETURN_IF_ERROR(catalogue_.Delete(row));
  MNEME_RETURN_IF_ERROR(Compact(session));
  return PutSession(std::move(session));
}

absl::Status ChangeApplier::Do(const RewindSession& change) {
  MNEME_ASSIGN_OR_RETURN(SessionRecord session, FindLive(change.session));
  const int64_t position = change.position;
  MNEME_ASSIGN_OR_RETURN(const std::vector<SnapshotRecord> snapshots,
                         SnapshotsOf(catalogue_, session.id));
  if (session.durability != Durability::kTurn || !CanReach(session, snapshots, position)) {
    return absl::OutOfRangeError(
        absl::StrCat(Described(session), ": position ", position, " is not in its log"));
  }
  MNEME_ASSIGN_OR_RETURN(std::vector<Turn> turns, Turns(session));
  size_t kept = 0;
  while (kept < turns.size() && turns[kept].end() <= position) ++kept;
  std::optional<Turn> cut;
  if (kept < turns.size() && turns[kept].begin < position) {
    cut = Turn{.begin = turns[kept].begin, .facts = change.facts};
    for (Event& event : turns[kept].events) {
      const int64_t left = position - cut->end();
      if (left == 0) break;
      if (auto* fed = std::get_if<TokensFed>(&event)) {
        fed->tokens.resize(std::min(fed->tokens.size(), static_cast<size_t>(left)));
      }
      cut->events.push_back(std::move(event));
    }
    if (cut->end() != position) {
      return absl::OutOfRangeError(absl::StrCat(Described(session), ": position ", position,
                                                " is within a state that was imported"));
    }
  }
  const int64_t end = session.first_turn + static_cast<int64_t>(kept);
  MNEME_RETURN_IF_ERROR(DropTurns(session, end, session.turns));
  session.turns = end;
  session.fed_tokens = position;
  session.pending_token.reset();
  session.state_digest = 0;
  session.facts = change.facts;
  if (cut.has_value()) MNEME_RETURN_IF_ERROR(PutTurn(session, *cut));
  for (const SnapshotRecord& snapshot : snapshots) {
    if (snapshot.position > position || snapshot.turn > session.turns) {
      MNEME_RETURN_IF_ERROR(DropSnapshot(session, snapshot));
    }
  }
  MNEME_ASSIGN_OR_RETURN(const std::vector<CheckpointRecord> checkpoints,
                         CheckpointsOf(catalogue_, session.id));
  for (const CheckpointRecord& one : checkpoints) {
    if (one.position <= position) continue;
    MNEME_RETURN_IF_ERROR(catalogue_.Delete({RowKind::kCheckpoint, session.id, one.name}));
  }
  MNEME_RETURN_IF_ERROR(DropRequests(session.id, position));
  return PutSession(std::move(session));
}

absl::Status ChangeApplier::Do(const ForkSession& change) {
  MNEME_ASSIGN_OR_RETURN(const SessionRecord parent, FindLive(change.parent));
  MNEME_RETURN_IF_ERROR(CheckNew(change.session));
  SessionRecord child = parent;
  child.id = change.session.id;
  child.owner = change.session.owner;
  child.name = change.session.name;
  child.created = change.session.created;
  child.last_used = change.session.last_used;
  child.ttl = change.session.ttl;
  child.turns = child.first_turn;
  child.log_bytes = child.snapshot_bytes = 0;
  MNEME_RETURN_IF_ERROR(CheckBytes(child, parent.log_bytes + parent.snapshot_bytes));
  MNEME_ASSIGN_OR_RETURN(const std::vector<Turn> turns, Turns(parent));
  for (const Turn& turn : turns) MNEME_RETURN_IF_ERROR(PutTurn(child, turn));
  MNEME_ASSIGN_OR_RETURN(const std::vector<SnapshotRecord> snapshots,
                         SnapshotsOf(catalogue_, parent.id));
  for (const SnapshotRecord& snapshot : snapshots) {
    MNEME_RETURN_IF_ERROR(PutSnapshot(child, snapshot));
  }
  return PutSession(std::move(child));
}

absl::Status ChangeApplier::Do(const LoseSession& change) {
  MNEME_ASSIGN_OR_RETURN(SessionRecord session, FindAny(change.session));
  session.status = SessionStatus::kLost;
  return PutSession(std::move(session));
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
