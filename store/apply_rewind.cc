// ChangeApplier: checkpoints, and what goes back.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "store/change_applier.h"
#include "store/rewind_point.h"
#include "store/session_rows.h"

namespace mneme {
namespace {

// Whether it has a pending token, among the last ones of its history, that is in no conversation
// any more.
bool HasTakenBack(const RewindPoint& point, const SnapshotRecord& snapshot) {
  return point.takes_back_pending() && snapshot.position == point.fed_tokens &&
         (snapshot.pending_token.has_value() || !snapshot.has_facts);
}

// Nothing else leads to what follows.
bool BeginsLog(const SessionRecord& session, const SnapshotRecord& snapshot) {
  return session.first_turn > 0 && snapshot.turn == session.first_turn;
}

// More in a row, while one snapshot is written, are rare: older copies are refused then.
constexpr size_t kRewindsKnown = 8;

// A copy of where a pending token was taken back has that token, and is refused.
void NoteRewind(const RewindPoint& point, SessionRecord& session) {
  const int64_t position = point.fed_tokens - (point.takes_back_pending() ? 1 : 0);
  session.went_back.push_back({++session.rewinds, point.turns, position});
  if (session.went_back.size() > kRewindsKnown) session.went_back.erase(session.went_back.begin());
}

}  // namespace

bool ChangeApplier::StillHolds(const SessionRecord& session, const SnapshotRecord& snapshot,
                               int64_t rewinds) {
  const int64_t since = session.rewinds - rewinds;
  if (since > static_cast<int64_t>(session.went_back.size())) return false;
  return std::ranges::all_of(session.went_back, [&](const WentBack& one) {
    return one.rewinds <= rewinds ||
           (snapshot.turn <= one.turn && snapshot.position <= one.position);
  });
}

absl::StatusOr<CheckpointRecord> ChangeApplier::FindCheckpointRow(const SessionRecord& session,
                                                                  const std::string& name) {
  const RowKey row = {RowKind::kCheckpoint, session.id, name};
  MNEME_ASSIGN_OR_RETURN(const std::optional<std::string> values, catalogue_.Get(row));
  if (!values.has_value()) {
    return absl::NotFoundError(absl::StrCat("session ", session.name, " has no checkpoint ", name));
  }
  MNEME_ASSIGN_OR_RETURN(CheckpointRecord found,
                         DecodeCheckpoint(RecordReader(*values), row.Name()));
  found.name = name;
  return found;
}

absl::Status ChangeApplier::Do(const AddCheckpoint& change) {
  MNEME_ASSIGN_OR_RETURN(SessionRecord session, FindLive(change.session));
  MNEME_ASSIGN_OR_RETURN(const std::vector<SnapshotRecord> snapshots,
                         SnapshotsOf(catalogue_, session.id));
  const CheckpointRecord& checkpoint = change.checkpoint;
  if (!CanReach(session, snapshots, checkpoint.position)) {
    return absl::OutOfRangeError(absl::StrCat("session ", session.name, ": position ",
                                              checkpoint.position, " is not in its log"));
  }
  const RowKey row = {RowKind::kCheckpoint, session.id, checkpoint.name};
  MNEME_ASSIGN_OR_RETURN(const std::optional<std::string> before, catalogue_.Get(row));
  if (before.has_value()) {
    return absl::AlreadyExistsError(
        absl::StrCat("session ", session.name, " has a checkpoint ", checkpoint.name, " already"));
  }
  MNEME_RETURN_IF_ERROR(catalogue_.Put(row, Encode(checkpoint)));
  ++session.checkpoints;
  return PutSession(std::move(session));
}

absl::Status ChangeApplier::Do(const DropCheckpoint& change) {
  MNEME_ASSIGN_OR_RETURN(SessionRecord session, FindAny(change.session));
  MNEME_RETURN_IF_ERROR(FindCheckpointRow(session, change.name).status());
  MNEME_RETURN_IF_ERROR(catalogue_.Delete({RowKind::kCheckpoint, session.id, change.name}));
  --session.checkpoints;
  MNEME_RETURN_IF_ERROR(Compact(session));
  staged_.erase = true;
  return PutSession(std::move(session));
}

absl::StatusOr<RewindPoint> ChangeApplier::FindPoint(const SessionRecord& session,
                                                     const std::vector<Turn>& turns,
                                                     const RewindTarget& to,
                                                     const FactsAfter& facts) {
  if (session.durability != Durability::kTurn) {
    return absl::OutOfRangeError(
        absl::StrCat("session ", session.name, " is not durable: it has no log to go back in"));
  }
  MNEME_ASSIGN_OR_RETURN(const std::vector<SnapshotRecord> snapshots,
                         SnapshotsOf(catalogue_, session.id));
  if (to.checkpoint.empty()) return FindPosition(session, turns, snapshots, to.position, facts);
  MNEME_ASSIGN_OR_RETURN(const CheckpointRecord checkpoint,
                         FindCheckpointRow(session, to.checkpoint));
  return FindCheckpoint(session, turns, snapshots, checkpoint, facts);
}

absl::Status ChangeApplier::Do(const RewindSession& change) {
  MNEME_ASSIGN_OR_RETURN(SessionRecord session, FindLive(change.session));
  MNEME_ASSIGN_OR_RETURN(const std::vector<Turn> turns, Turns(session));
  MNEME_ASSIGN_OR_RETURN(const RewindPoint point,
                         FindPoint(session, turns, change.to, change.facts));
  MNEME_RETURN_IF_ERROR(GoBackTo(point, session));
  session.last_used = change.when;
  MNEME_RETURN_IF_ERROR(DropRequests(session.id, session.position()));
  return PutSession(std::move(session));
}

absl::Status ChangeApplier::Do(const CutSession& change) {
  MNEME_ASSIGN_OR_RETURN(SessionRecord session, FindLive(change.session));
  if (change.rewinds != session.rewinds) {
    return absl::NotFoundError(
        absl::StrCat(Described(session), " was rewound since its log was looked at"));
  }
  if (change.to.turns == 0 && !change.to.part.has_value()) {
    MNEME_RETURN_IF_ERROR(DropTurns(session, session.first_turn, session.turns));
    session.first_turn = session.turns = 0;
  } else {
    MNEME_RETURN_IF_ERROR(CheckPoint(session, change.to));
  }
  MNEME_RETURN_IF_ERROR(GoBackTo(change.to, session));
  MNEME_RETURN_IF_ERROR(
      ClearReplies(session.id, session.position(), [&change](int) { return change.outcome; }));
  return PutSession(std::move(session));
}

absl::Status ChangeApplier::CheckPoint(const SessionRecord& session, const RewindPoint& point) {
  if (point.turns < session.first_turn || point.turns > session.turns) {
    return absl::OutOfRangeError(absl::StrCat(Described(session), ": to be cut at turn ",
                                              point.turns, ", its log has those from ",
                                              session.first_turn, " to ", session.turns));
  }
  MNEME_ASSIGN_OR_RETURN(const int64_t fed, FedBefore(session, point.turns));
  const int64_t expected = point.part.has_value() ? point.part->begin : point.fed_tokens;
  const int64_t end = point.part.has_value() ? point.part->end() : point.fed_tokens;
  if (fed == expected && end == point.fed_tokens) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      Described(session), ": to be cut at ", point.fed_tokens, " tokens fed, from ", expected,
      " after turn ", point.turns, " to ", end, ", whose log has ", fed, " there"));
}

absl::Status ChangeApplier::GoBackTo(const RewindPoint& point, SessionRecord& session) {
  MNEME_RETURN_IF_ERROR(DropTurns(session, point.turns, session.turns));
  MNEME_RETURN_IF_ERROR(StandAt(point, session));
  session.doubted_at.reset();  // whoever goes back knows where to
  NoteRewind(point, session);
  MNEME_ASSIGN_OR_RETURN(const std::vector<SnapshotRecord> snapshots,
                         SnapshotsOf(catalogue_, session.id));
  for (SnapshotRecord snapshot : snapshots) {
    if (!point.Keeps(snapshot) ||
        (HasTakenBack(point, snapshot) && !BeginsLog(session, snapshot))) {
      MNEME_RETURN_IF_ERROR(DropSnapshot(session, snapshot));
    } else if (HasTakenBack(point, snapshot)) {
      snapshot.pending_token.reset();
      MNEME_RETURN_IF_ERROR(catalogue_.Put(SnapshotRow(session.id, snapshot.id), Encode(snapshot)));
    }
  }
  MNEME_ASSIGN_OR_RETURN(const std::vector<CheckpointRecord> checkpoints,
                         CheckpointsOf(catalogue_, session.id));
  for (const CheckpointRecord& one : checkpoints) {
    if (point.Keeps(one)) continue;
    MNEME_RETURN_IF_ERROR(catalogue_.Delete({RowKind::kCheckpoint, session.id, one.name}));
    --session.checkpoints;
  }
  staged_.erase = true;
  return absl::OkStatus();
}

// Its log has the turns up to there.
absl::Status ChangeApplier::StandAt(const RewindPoint& point, SessionRecord& session) {
  session.turns = point.turns;
  session.fed_tokens = point.fed_tokens;
  session.pending_token = point.pending_token;
  session.state_digest = point.state_digest;
  session.facts = point.facts;
  if (point.takes_back_pending()) MNEME_RETURN_IF_ERROR(ErasePending(session));
  return point.part.has_value() ? PutTurn(session, *point.part) : absl::OkStatus();
}

absl::Status ChangeApplier::Do(const ForkSession& change) {
  MNEME_ASSIGN_OR_RETURN(const SessionRecord parent, FindLive(change.parent));
  MNEME_RETURN_IF_ERROR(CheckNew(change.session));
  MNEME_ASSIGN_OR_RETURN(const std::vector<Turn> turns, Turns(parent));
  std::optional<RewindPoint> point;
  if (change.at.has_value()) {
    MNEME_ASSIGN_OR_RETURN(point, FindPoint(parent, turns, *change.at, change.facts));
  }
  SessionRecord child = parent;
  child.id = change.session.id;
  child.owner = change.session.owner;
  child.name = change.session.name;
  child.created = change.session.created;
  child.last_used = change.session.last_used;
  child.ttl = change.session.ttl;
  child.turns = child.first_turn;
  child.log_bytes = child.snapshot_bytes = 0;
  child.checkpoints = child.rewinds = 0;
  child.went_back.clear();
  for (const Turn& turn : turns) {
    if (point.has_value() && child.turns == point->turns) break;
    MNEME_RETURN_IF_ERROR(PutTurn(child, turn));
  }
  if (point.has_value()) {
    MNEME_RETURN_IF_ERROR(StandAt(*point, child));
    child.doubted_at.reset();
  }
  MNEME_ASSIGN_OR_RETURN(const std::vector<SnapshotRecord> snapshots,
                         SnapshotsOf(catalogue_, parent.id));
  for (const SnapshotRecord& snapshot : snapshots) {
    if (point.has_value() && !point->Keeps(snapshot)) continue;
    SnapshotRecord copy = snapshot;
    if (point.has_value() && HasTakenBack(*point, copy)) {
      if (!BeginsLog(child, copy)) continue;
      copy.pending_token.reset();
    }
    MNEME_RETURN_IF_ERROR(PutSnapshot(child, copy));
  }
  MNEME_RETURN_IF_ERROR(CheckBytes(child, child.log_bytes + child.snapshot_bytes));
  return PutSession(std::move(child));
}

}  // namespace mneme
