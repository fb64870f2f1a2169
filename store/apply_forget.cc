// A session of which something is forgotten, or which came from elsewhere: its log begins anew.
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "store/change_applier.h"
#include "store/session_rows.h"

namespace mneme {

absl::Status ChangeApplier::Do(const ForgetPast& change) {
  MNEME_ASSIGN_OR_RETURN(SessionRecord session, FindLive(change.session));
  MNEME_ASSIGN_OR_RETURN(const std::vector<SnapshotRecord> snapshots,
                         SnapshotsOf(catalogue_, session.id));
  for (const SnapshotRecord& snapshot : snapshots) {
    MNEME_RETURN_IF_ERROR(DropSnapshot(session, snapshot));
  }
  MNEME_RETURN_IF_ERROR(catalogue_.DeleteAll(RowKind::kCheckpoint, session.id));
  const auto erased = [&change](int outcome) {
    return outcome == change.answered ? change.erased : outcome;
  };
  MNEME_RETURN_IF_ERROR(ClearReplies(session.id, change.answers_beyond, erased));
  MNEME_RETURN_IF_ERROR(BeginLogAt(session, session.turns));
  session.parked = session.durability == Durability::kNone;
  session.checkpoints = 0;
  SnapshotRecord snapshot = change.snapshot;
  MNEME_RETURN_IF_ERROR(CheckSnapshot(session, snapshot));
  MNEME_RETURN_IF_ERROR(SetThere(session, snapshot));
  MNEME_RETURN_IF_ERROR(PutSession(session));  // its bytes are those that are left
  MNEME_RETURN_IF_ERROR(CheckBytes(session, snapshot.bytes));
  MNEME_RETURN_IF_ERROR(PutSnapshot(session, snapshot));
  staged_.erase = true;
  return PutSession(std::move(session));
}

absl::Status ChangeApplier::ClearReplies(uint64_t session, int64_t beyond_position,
                                         absl::FunctionRef<int(int outcome)> becomes) {
  std::vector<std::pair<RowKey, RequestRecord>> told;
  MNEME_RETURN_IF_ERROR(catalogue_.Scan(
      RowKind::kRequest, session, "",
      [&](const RowKey& row, RecordReader values) -> absl::StatusOr<bool> {
        MNEME_ASSIGN_OR_RETURN(RequestRecord request, DecodeRequest(values, row.Name()));
        const bool changes = !request.reply.empty() || becomes(request.outcome) != request.outcome;
        if (request.position > beyond_position && changes) {
          told.emplace_back(row, std::move(request));
        }
        return true;
      }));
  for (auto& [row, request] : told) {
    request.reply.clear();
    request.outcome = becomes(request.outcome);
    MNEME_RETURN_IF_ERROR(catalogue_.Put(row, Encode(request)));
  }
  return absl::OkStatus();
}

}  // namespace mneme
