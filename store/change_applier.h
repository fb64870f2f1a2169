// Changes to rows: the rules of what may follow what.
#pragma once

#include <cstdint>
#include <functional>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "store/catalogue.h"
#include "store/rewind_point.h"
#include "store/session_record.h"
#include "store/store_change.h"

namespace mneme {

// What a commit will have done beside rows, once it is durable.
struct StagedCommit {
  absl::flat_hash_map<uint64_t, std::optional<SessionRecord>> sessions;  // nothing: deleted
  std::vector<uint64_t> snapshots_added;                                 // a user each
  std::vector<uint64_t> snapshots_dropped;                               // likewise
  std::vector<uint64_t> snapshots_damaged;
  std::vector<RowKey> requests_added;  // rows of kRequest
  std::vector<RowKey> requests_dropped;
  std::vector<std::pair<uint64_t, std::string>> models;  // and their names
  std::vector<TakeOverModel> taken_over;
  bool erase = false;        // what was deleted, before this is acknowledged
  bool erase_later = false;  // what gave way to something newer
  int64_t turns = 0;
  int64_t log_bytes = 0;

  void Add(StagedCommit&& other);
};

// The sessions as they were committed before.
class CommittedSessions {
 public:
  virtual ~CommittedSessions() = default;
  virtual std::optional<SessionRecord> Find(uint64_t id) const = 0;
  virtual std::optional<SessionRecord> Find(absl::string_view owner,
                                            absl::string_view name) const = 0;
  virtual OwnerUsage UsageOf(const std::string& owner) const = 0;
};

// Rows of sessions, decoded; oldest first, and by name.
absl::StatusOr<std::vector<SnapshotRecord>> SnapshotsOf(Catalogue& catalogue, uint64_t session);
absl::StatusOr<std::vector<CheckpointRecord>> CheckpointsOf(Catalogue& catalogue, uint64_t session);

// Whether a state of `position` tokens can be had from a snapshot, or from nothing, and the log.
bool CanReach(const SessionRecord& session, const std::vector<SnapshotRecord>& snapshots,
              int64_t position);
// The changes of one batch, within a part of the catalogue's transaction that is taken back where
// one of them fails. `group`: what batches before it in the same transaction have staged.
// `sequence` grows from batch to batch: the age of requests.
class ChangeApplier {
 public:
  ChangeApplier(Catalogue& catalogue, const CommittedSessions& committed, const StagedCommit& group,
                const StoreLimits& limits, uint64_t sequence)
      : catalogue_(catalogue),
        committed_(committed),
        group_(group),
        limits_(limits),
        sequence_(sequence) {}

  // Errors as SessionStore::Submit says, and those of the catalogue.
  absl::Status Apply(const Change& change);
  StagedCommit TakeStaged() { return std::move(staged_); }

 private:
  absl::Status Do(const CreateSession& change);
  absl::Status Do(const AddTurn& change);
  absl::Status Do(const ChangeSession& change);
  absl::Status Do(const AddSnapshot& change);
  absl::Status Do(const DropDamagedSnapshot& change);
  absl::Status Do(const DeleteSession& change);
  absl::Status Do(const NameModel& change);
  absl::Status Do(const TakeOverModel& change);

  // apply_rewind.cc
  absl::Status Do(const AddCheckpoint& change);
  absl::Status Do(const DropCheckpoint& change);
  absl::Status Do(const RewindSession& change);
  absl::Status Do(const CutSession& change);
  absl::Status Do(const ForgetPast& change);
  absl::Status Do(const ForkSession& change);
  absl::StatusOr<CheckpointRecord> FindCheckpointRow(const SessionRecord& session,
                                                     const std::string& name);
  absl::StatusOr<RewindPoint> FindPoint(const SessionRecord& session,
                                        const std::vector<Turn>& turns, const RewindTarget& to,
                                        const FactsAfter& facts);
  // Whether all that the session went back to since then lies behind the snapshot.
  static bool StillHolds(const SessionRecord& session, const SnapshotRecord& snapshot,
                         int64_t rewinds);
  absl::Status StandAt(const RewindPoint& point, SessionRecord& session);
  // Drops what is behind.
  absl::Status GoBackTo(const RewindPoint& point, SessionRecord& session);
  absl::Status CheckPoint(const SessionRecord& session, const RewindPoint& point);

  // Sessions as they are after what is staged.
  std::optional<SessionRecord> Find(uint64_t id) const;
  absl::StatusOr<SessionRecord> FindAny(uint64_t id) const;
  absl::StatusOr<SessionRecord> FindLive(uint64_t id) const;
  absl::Status CheckNew(const SessionRecord& session) const;
  // Tokens fed in front of a turn that the log has, or may have next.
  absl::StatusOr<int64_t> FedBefore(const SessionRecord& session, int64_t turn);
  absl::Status CheckSnapshot(const SessionRecord& session, const SnapshotRecord& snapshot);
  absl::Status CheckBase(const SessionRecord& session, const SnapshotRecord& snapshot);
  absl::Status CheckBytes(const SessionRecord& session, int64_t more) const;
  OwnerUsage UsageOf(const std::string& owner) const;

  absl::Status PutSession(SessionRecord session);
  absl::Status PutTurn(SessionRecord& session, const Turn& turn);
  absl::Status PutRequest(const SessionRecord& session, const RequestRecord& request);
  absl::Status PutSnapshot(SessionRecord& session, const SnapshotRecord& snapshot);
  absl::Status DropSnapshot(SessionRecord& session, const SnapshotRecord& snapshot);
  absl::Status DropRequests(uint64_t session, int64_t beyond_position);
  // Rewrites the last turns of the log without the pending token that they ended with.
  absl::Status ErasePending(SessionRecord& session);
  // The same, where what is fed next is another token, and no checkpoint is to bring it back.
  absl::Status ErasePendingUnlessFed(SessionRecord& session, const Turn& next);
  // Turns [begin, end) of the log.
  absl::Status DropTurns(SessionRecord& session, int64_t begin, int64_t end);
  absl::StatusOr<std::vector<Turn>> Turns(const SessionRecord& session);
  // What the session was where the snapshot is of, as far as the log says it.
  absl::Status SetThere(const SessionRecord& session, SnapshotRecord& snapshot);
  // Drops what was answered to requests that ended beyond that position. `becomes`: of an outcome,
  // what it is from then on.
  absl::Status ClearReplies(uint64_t session, int64_t beyond_position,
                            absl::FunctionRef<int(int outcome)> becomes);
  // Drops the turns before.
  absl::Status BeginLogAt(SessionRecord& session, int64_t turn);
  // Drops snapshots that nobody needs, and what of a long log is behind the others.
  absl::Status Compact(SessionRecord& session) { return Compact(session, MostSpaced(session)); }
  absl::Status Compact(SessionRecord& session, int64_t most_spaced);
  // Snapshots that it may have beside those that it needs.
  int64_t MostSpaced(const SessionRecord& session) const;
  // As CheckBytes, after dropping such snapshots where they are in the way.
  absl::Status MakeRoom(SessionRecord& session, int64_t more);

  Catalogue& catalogue_;
  const CommittedSessions& committed_;
  const StagedCommit& group_;
  const StoreLimits& limits_;
  const uint64_t sequence_;
  StagedCommit staged_;
};

}  // namespace mneme
