// What can be done to sessions in the store, and the bounds of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "store/rewind_point.h"
#include "store/session_record.h"

namespace mneme {

// Changes of one session, by its id.
struct CreateSession {
  SessionRecord session;  // id of NewId(); of the rest what is not about a log counts
};
// Of a session that is not durable, a turn has no events; only where it stands is kept. The turn
// begins where the session stands. `request` becomes durable with it. One that feeds nothing is not
// refused for its bytes. A state that was imported needs ForgetPast with its snapshot in the same
// batch.
struct AddTurn {
  uint64_t session = 0;
  Turn turn;
  int64_t fed_tokens = 0;  // after it: turn.end(), unless the session is not durable
  absl::Time when;
  std::optional<RequestRecord> request;
};
struct ChangeSession {
  uint64_t session = 0;
  std::optional<absl::Duration> ttl;
  std::optional<absl::Time> last_used;
  bool lost = false;  // what the store has of it does not lead to where it stood
};
// A snapshot of the end of the turn before `snapshot.turn`, whose file is durable. The two newest
// are kept, those that checkpoints need, and some of the others (StoreLimits). Of a session that is
// not durable: it is parked. NOT_FOUND where the session went back to before it since the state was
// copied. From here on the file is the store's, which removes it where the batch is refused.
struct AddSnapshot {
  uint64_t session = 0;
  SnapshotRecord snapshot;  // `facts` and `pending_token` are the log's
  int64_t rewinds = 0;      // SessionRecord::rewinds when the state was copied
};
// Its file cannot be read, and is set aside.
struct DropDamagedSnapshot {
  uint64_t session = 0;
  uint64_t snapshot = 0;
};
// The name is none of the session's checkpoints.
struct AddCheckpoint {
  uint64_t session = 0;
  CheckpointRecord checkpoint;
};
struct DropCheckpoint {
  uint64_t session = 0;
  std::string name;
};
// Where a session is to be again: rewind_point.h says what it is there.
struct RewindTarget {
  int64_t position = 0;    // SessionRecord::position() then, unless there is
  std::string checkpoint;  // a name
};
// Later turns, requests, snapshots and checkpoints are gone, and erased.
struct RewindSession {
  uint64_t session = 0;
  RewindTarget to;
  FactsAfter facts;  // empty: parts of turns have none
  absl::Time when;
};
// As RewindSession to a point that was looked up before, for what follows in the same batch. That
// there were later requests stays, with another outcome, and without what was answered to them. A
// point of no turns is the beginning of any session.
struct CutSession {
  uint64_t session = 0;
  RewindPoint to;
  int64_t rewinds = 0;  // SessionRecord::rewinds when it was looked up
  int outcome = 0;      // RequestRecord::outcome of later requests
};
// Nothing leads to where the session stands any more but this snapshot of it, which becomes its
// only one: turns, snapshots and checkpoints are gone, and what was answered to requests that ended
// beyond `answers_beyond`, though not that there were such: of those whose outcome is `answered` it
// becomes `erased`. A session that is not durable is parked with it. The file is the store's as
// that of AddSnapshot.
struct ForgetPast {
  uint64_t session = 0;
  SnapshotRecord snapshot;
  int64_t answers_beyond = 0;
  int answered = 0, erased = 0;  // RequestRecord::outcome
};
// A new session that has the log and the snapshots of another, and its durability; checkpoints and
// requests stay with that.
struct ForkSession {
  uint64_t parent = 0;
  SessionRecord session;  // as in CreateSession
  // As the parent was there; without it, as it is.
  std::optional<RewindTarget> at = std::nullopt;
  FactsAfter facts = nullptr;  // as in RewindSession
};
struct DeleteSession {
  uint64_t session = 0;
};
// What a model is called, for messages to those who serve another one.
struct NameModel {
  uint64_t model = 0;  // SessionRecord::model
  std::string name;
};
// What was kept as sessions of `before` is `model`'s: the identity that the same model has by a
// later rule. Sessions that another one has taken over stay that one's.
struct TakeOverModel {
  uint64_t before = 0;  // SessionRecord::model
  uint64_t model = 0;
};
using Change = std::variant<CreateSession, AddTurn, ChangeSession, AddSnapshot, DropDamagedSnapshot,
                            AddCheckpoint, DropCheckpoint, RewindSession, CutSession, ForgetPast,
                            ForkSession, DeleteSession, NameModel, TakeOverModel>;

// 0: no limit, where not said otherwise.
struct StoreLimits {
  // Beyond, the log of a session loses what is behind the oldest snapshot that is kept.
  int64_t log_bytes_per_session = int64_t{16} << 20;
  // Snapshots of a durable session, the two newest among them, that are spaced over its past
  // (spaced_places.h), as long as the owner has less than half of its bytes. There are more where
  // checkpoints or others need them.
  int64_t snapshots_per_session = 2;
  int64_t sessions_per_owner = 0;
  int64_t bytes_per_owner = 0;  // logs and snapshots
};

struct OwnerUsage {
  int64_t sessions = 0;
  int64_t bytes = 0;
  int64_t checkpoints = 0;
};

}  // namespace mneme
