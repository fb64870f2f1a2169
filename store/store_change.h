// What can be done to sessions in the store, and the bounds of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "absl/time/time.h"
#include "store/session_record.h"

namespace mneme {

// Changes of one session, by its id.
struct CreateSession {
  SessionRecord session;  // id of NewId(); of the rest what is not about a log counts
};
// Of a session that is not durable, a turn has no events; only where it stands is kept. The turn
// begins where the session stands. `request` becomes durable with it.
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
  // Of a session that is not durable, before it goes on from its snapshot: false.
  std::optional<bool> parked;
};
// A snapshot of the end of the turn before `snapshot.turn`, whose file is durable. The two newest
// are kept, and those that checkpoints need. Of a session that is not durable: it is parked. From
// here on the file is the store's, which removes it where the batch is refused.
struct AddSnapshot {
  uint64_t session = 0;
  SnapshotRecord snapshot;
};
// Its file cannot be read, and is set aside.
struct DropDamagedSnapshot {
  uint64_t session = 0;
  uint64_t snapshot = 0;
};
struct AddCheckpoint {
  uint64_t session = 0;
  CheckpointRecord checkpoint;
};
struct DropCheckpoint {
  uint64_t session = 0;
  std::string name;
};
// Back to where `position` tokens had been fed. Later turns, requests, snapshots and checkpoints
// are gone. There is no pending token then.
struct RewindSession {
  uint64_t session = 0;
  int64_t position = 0;
  std::string facts;  // SessionRecord::facts there
};
// A new session that has the log and the snapshots of another, and its durability; checkpoints and
// requests stay with that.
struct ForkSession {
  uint64_t parent = 0;
  SessionRecord session;  // as in CreateSession
};
struct LoseSession {
  uint64_t session = 0;
};
struct DeleteSession {
  uint64_t session = 0;
};
using Change = std::variant<CreateSession, AddTurn, ChangeSession, AddSnapshot, DropDamagedSnapshot,
                            AddCheckpoint, DropCheckpoint, RewindSession, ForkSession, LoseSession,
                            DeleteSession>;

// 0: no limit, where not said otherwise.
struct StoreLimits {
  // Beyond, the log of a session loses what is behind the oldest snapshot that is kept.
  int64_t log_bytes_per_session = int64_t{16} << 20;
  int64_t sessions_per_owner = 0;
  int64_t bytes_per_owner = 0;  // logs and snapshots
};

struct OwnerUsage {
  int64_t sessions = 0;
  int64_t bytes = 0;
};

}  // namespace mneme
