// What changes put into rows and drop from them.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "store/change_applier.h"
#include "store/rewind_point.h"
#include "store/session_rows.h"
#include "store/spaced_places.h"

namespace mneme {
namespace {

// Of a durable session, whatever else it has.
constexpr int64_t kNewestSnapshots = 2;

}  // namespace

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
    staged_.erase_later = true;
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
  const RowKey row = SnapshotRow(session.id, snapshot.id);
  MNEME_ASSIGN_OR_RETURN(const std::optional<std::string> before, catalogue_.Get(row));
  MNEME_RETURN_IF_ERROR(catalogue_.Put(row, Encode(snapshot)));
  if (before.has_value()) return absl::OkStatus();  // found by its file, when damage was mended
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

absl::Status ChangeApplier::ErasePending(SessionRecord& session) {
  for (int64_t i = session.turns; i-- > session.first_turn;) {
    const RowKey row = TurnRow(session.id, i);
    MNEME_ASSIGN_OR_RETURN(const std::optional<std::string> values, catalogue_.Get(row));
    if (!values.has_value()) return absl::DataLossError(absl::StrCat(row.Name(), ": is missing"));
    MNEME_ASSIGN_OR_RETURN(Turn turn, DecodeTurn(RecordReader(*values), row.Name()));
    if (!turn.pending_token.has_value()) break;
    turn.pending_token.reset();
    RecordWriter without = Encode(turn);
    session.log_bytes +=
        static_cast<int64_t>(without.size()) - static_cast<int64_t>(values->size());
    MNEME_RETURN_IF_ERROR(catalogue_.Put(row, std::move(without)));
    if (turn.end() > turn.begin) break;  // it was drawn there
  }
  return absl::OkStatus();
}

absl::Status ChangeApplier::ErasePendingUnlessFed(SessionRecord& session, const Turn& next) {
  if (!session.pending_token.has_value()) return absl::OkStatus();
  std::optional<int32_t> goes_on = next.pending_token;  // where it feeds nothing
  for (const Event& event : next.events) {
    const auto* fed = std::get_if<TokensFed>(&event);
    if (fed == nullptr || fed->tokens.empty()) continue;
    goes_on = fed->tokens.front();
    break;
  }
  if (goes_on == session.pending_token) return absl::OkStatus();
  MNEME_ASSIGN_OR_RETURN(const std::vector<CheckpointRecord> checkpoints,
                         CheckpointsOf(catalogue_, session.id));
  for (const CheckpointRecord& one : checkpoints) {
    if (one.has_pending_token && one.position == session.fed_tokens) return absl::OkStatus();
  }
  staged_.erase_later = true;
  return ErasePending(session);
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

absl::Status ChangeApplier::BeginLogAt(SessionRecord& session, int64_t turn) {
  if (turn == session.first_turn) return absl::OkStatus();
  MNEME_RETURN_IF_ERROR(DropTurns(session, session.first_turn, turn));
  session.first_turn = turn;
  staged_.erase = true;
  return absl::OkStatus();
}

absl::Status ChangeApplier::SetThere(const SessionRecord& session, SnapshotRecord& snapshot) {
  snapshot.has_facts = true;
  snapshot.facts = session.facts;
  snapshot.pending_token = session.pending_token;
  if (snapshot.turn == session.turns) return absl::OkStatus();
  snapshot.has_facts = false;
  snapshot.facts.clear();
  snapshot.pending_token.reset();
  if (snapshot.turn == session.first_turn) return absl::OkStatus();
  const RowKey row = TurnRow(session.id, snapshot.turn - 1);
  MNEME_ASSIGN_OR_RETURN(const std::optional<std::string> values, catalogue_.Get(row));
  if (!values.has_value()) return absl::DataLossError(absl::StrCat(row.Name(), ": is missing"));
  MNEME_ASSIGN_OR_RETURN(Turn last, DecodeTurn(RecordReader(*values), row.Name()));
  snapshot.has_facts = true;
  snapshot.facts = std::move(last.facts);
  snapshot.pending_token = last.pending_token;
  return absl::OkStatus();
}

// What others of the key's sessions need comes first: places of the past alone take no more than a
// half of what it may have.
int64_t ChangeApplier::MostSpaced(const SessionRecord& session) const {
  if (session.durability != Durability::kTurn) return 0;
  if (limits_.bytes_per_owner > 0 && UsageOf(session.owner).bytes > limits_.bytes_per_owner / 2) {
    return 0;
  }
  return std::max<int64_t>(limits_.snapshots_per_session - kNewestSnapshots, 0);
}

absl::Status ChangeApplier::Compact(SessionRecord& session, int64_t most_spaced) {
  MNEME_ASSIGN_OR_RETURN(const std::vector<SnapshotRecord> snapshots,
                         SnapshotsOf(catalogue_, session.id));
  MNEME_ASSIGN_OR_RETURN(const std::vector<CheckpointRecord> checkpoints,
                         CheckpointsOf(catalogue_, session.id));
  const bool durable = session.durability == Durability::kTurn;
  const size_t newest = durable ? kNewestSnapshots : 1;
  const auto is_needed = [&](size_t i) {
    return i + newest >= snapshots.size() ||
           std::any_of(checkpoints.begin(), checkpoints.end(), [&](const CheckpointRecord& one) {
             return LeadsTo(snapshots[i], one) && !LeadsTo(snapshots[i + 1], one);
           });
  };
  const auto begins_log = [&](const SnapshotRecord& snapshot) {
    return durable && session.first_turn > 0 && snapshot.turn == session.first_turn;
  };
  std::vector<SpacedPlace> places;
  for (size_t i = 0; i < snapshots.size(); ++i) {
    places.push_back({snapshots[i].position, is_needed(i) || begins_log(snapshots[i])});
  }
  const bool is_whole = session.first_turn == 0 || snapshots.empty();
  const std::vector<bool> spaced =
      SpacedPlaces(places, is_whole ? 0 : snapshots.front().position, most_spaced);
  // One snapshot alone may turn out to be damaged: the log stays whole behind it. Nor may
  // checkpoints lose what leads to them.
  for (size_t i = 0; i + 1 < snapshots.size(); ++i) {
    if (session.log_bytes <= limits_.log_bytes_per_session) break;
    if (!spaced[i] || snapshots[i].turn < session.first_turn) continue;
    const bool loses_none =
        std::all_of(checkpoints.begin(), checkpoints.end(),
                    [&](const CheckpointRecord& one) { return LeadsTo(snapshots[i], one); });
    if (!loses_none) break;
    MNEME_RETURN_IF_ERROR(BeginLogAt(session, snapshots[i].turn));
    if (is_needed(i)) break;
  }
  std::set<uint64_t> bases;  // of those that stay
  for (size_t i = snapshots.size(); i-- > 0;) {
    const SnapshotRecord& snapshot = snapshots[i];
    const bool leads_on = is_needed(i) || snapshot.turn >= session.first_turn;
    if ((spaced[i] && leads_on) || begins_log(snapshot) || bases.contains(snapshot.id)) {
      bases.insert(snapshot.base);
    } else {
      MNEME_RETURN_IF_ERROR(DropSnapshot(session, snapshot));
    }
  }
  return absl::OkStatus();
}

absl::Status ChangeApplier::MakeRoom(SessionRecord& session, int64_t more) {
  if (CheckBytes(session, more).ok()) return absl::OkStatus();
  MNEME_RETURN_IF_ERROR(Compact(session, /*most_spaced=*/0));
  MNEME_RETURN_IF_ERROR(PutSession(session));
  return CheckBytes(session, more);
}

}  // namespace mneme
