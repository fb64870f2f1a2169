// Records of sessions: plain data, and its bytes in rows of the catalogue.
//
// Versions. Each record begins with a version, and readers refuse those above their own
// (FAILED_PRECONDITION). Kinds of events are numbers that are never given to another kind; one that
// a reader does not know is refused, too, as a log without it would be another conversation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "store/record.h"

namespace mneme {

enum class SessionStatus {
  kLive = 0,
  kLost = 1,  // it existed, and cannot go on: a request that names it has to be told
};

enum class Durability {
  kTurn = 0,  // what was acknowledged is on the disk
  kNone = 1,  // only name and position are, so that its loss is known
};

// A time that a session went back. Snapshots in front of it still hold, those that were copied
// before and come in later, too.
struct WentBack {
  int64_t rewinds = 0;  // SessionRecord::rewinds since then
  // The farthest snapshot that holds.
  int64_t turn = 0;
  int64_t position = 0;
};

// Deleted sessions have no record: nothing is left of them.
struct SessionRecord {
  uint64_t id = 0;  // no other session has it, not a later one of the same name either
  std::string owner;
  std::string name;
  SessionStatus status = SessionStatus::kLive;
  Durability durability = Durability::kTurn;
  // Of a session that is not durable: whether its newest snapshot is all of it. Without that, such
  // a session is lost when the process ends.
  bool parked = false;
  uint64_t model = 0;  // its identity: the engine's, who goes on with no other
  absl::Time created;
  absl::Time last_used;
  absl::Duration ttl = absl::InfiniteDuration();
  // The seed that it brought, if any; stays when it goes back, to its beginning, too.
  std::optional<uint64_t> memory_seed;

  int64_t fed_tokens = 0;
  std::optional<int32_t> pending_token;  // known to the client, not yet fed
  uint64_t state_digest = 0;             // after fed_tokens, of the engine's making; 0: none
  std::string facts;                     // the engine's own, of the last turn: not read here

  // Turns behind this may be gone, as the catalogue was damaged: the position that it is known to
  // have had, this one's at least. Until it is fed more, or goes back.
  std::optional<int64_t> doubted_at;

  int64_t turns = 0;       // that were ever logged
  int64_t first_turn = 0;  // the oldest that the log still has
  int64_t log_bytes = 0;
  int64_t snapshot_bytes = 0;

  // Not stored: counted when the store is opened, and since then.
  int64_t checkpoints = 0;
  int64_t rewinds = 0;
  std::vector<WentBack> went_back;  // the last ones, oldest first

  int64_t position() const { return fed_tokens + (pending_token.has_value() ? 1 : 0); }
  // Bytes that StoreLimits::bytes_per_owner bounds; a snapshot that a fork shares counts for both.
  int64_t stored_bytes() const { return log_bytes + snapshot_bytes; }
};

// Events: what a state is a function of, in the order in which it was fed.
struct TokensFed {
  std::vector<int32_t> tokens;
  friend bool operator==(const TokensFed&, const TokensFed&) = default;
};
struct RangeForgotten {  // of positions [begin, end)
  int64_t begin = 0;
  int64_t end = 0;
  friend bool operator==(const RangeForgotten&, const RangeForgotten&) = default;
};
// Which a snapshot holds; the state after it is that of `fed_tokens` tokens. The log goes on behind
// it, and does not keep its turn (ForgetPast).
struct StateImported {
  uint64_t snapshot = 0;
  int64_t fed_tokens = 0;
  friend bool operator==(const StateImported&, const StateImported&) = default;
};
// SessionRecord::memory_seed, in front of all that the session is fed: a log that leads back to its
// beginning is enough to know it.
struct MemorySeeded {
  uint64_t seed = 0;
  friend bool operator==(const MemorySeeded&, const MemorySeeded&) = default;
};
struct AdapterChosen {
  uint64_t adapter = 0;
  friend bool operator==(const AdapterChosen&, const AdapterChosen&) = default;
};
using Event = std::variant<TokensFed, RangeForgotten, StateImported, MemorySeeded, AdapterChosen>;

// What one request did to a session, whether or not it went to its end.
struct Turn {
  int64_t begin = 0;  // tokens fed before it
  std::vector<Event> events;
  std::optional<int32_t> pending_token;  // after it
  uint64_t state_digest = 0;             // after it; 0: none
  std::string facts;                     // SessionRecord::facts after it

  // Tokens fed after it.
  int64_t end() const;
  friend bool operator==(const Turn&, const Turn&) = default;
};

// A request with an idempotency key, and how it ended.
struct RequestRecord {
  std::string owner;
  std::string key;
  uint64_t digest = 0;   // of the request
  int outcome = 0;       // the engine's
  int64_t position = 0;  // of the session when it ended
  uint64_t session = 0;  // SessionRecord::id
  std::string reply;     // the engine's record of what was answered
  friend bool operator==(const RequestRecord&, const RequestRecord&) = default;
};

struct SnapshotRecord {
  uint64_t id = 0;       // names the file
  int64_t position = 0;  // tokens fed
  int64_t turn = 0;      // turns of the log that are in it
  int64_t bytes = 0;
  // Of the session there, where the log said it when the snapshot was added; version 1 has neither.
  bool has_facts = false;
  std::string facts = {};
  std::optional<int32_t> pending_token = std::nullopt;
  // Of the session's snapshots, that which it goes on from (SlabHead::base); 0: none, as in
  // versions 1 and 2.
  uint64_t base = 0;
  friend bool operator==(const SnapshotRecord&, const SnapshotRecord&) = default;
};

struct CheckpointRecord {
  std::string name;
  int64_t position = 0;  // tokens fed
  absl::Time created;
  int64_t turns = -1;              // SessionRecord::turns there; -1: version 1, where nobody knows
  bool has_pending_token = false;  // there
  friend bool operator==(const CheckpointRecord&, const CheckpointRecord&) = default;
};

// Of a request's rows: no two pairs have the same.
std::string RequestKey(absl::string_view owner, absl::string_view key);

// To and from the values of a row; what the row's key says (SessionRecord::id, SnapshotRecord::id,
// owner and key of a request, a checkpoint's name) is not among them. Decoding fails with
// FAILED_PRECONDITION or DATA_LOSS, naming the row.
RecordWriter Encode(const SessionRecord& session);
RecordWriter Encode(const Turn& turn);
RecordWriter Encode(const RequestRecord& request);
RecordWriter Encode(const SnapshotRecord& snapshot);
RecordWriter Encode(const CheckpointRecord& checkpoint);
absl::StatusOr<SessionRecord> DecodeSession(RecordReader values, absl::string_view row);
absl::StatusOr<Turn> DecodeTurn(RecordReader values, absl::string_view row);
absl::StatusOr<RequestRecord> DecodeRequest(RecordReader values, absl::string_view row);
absl::StatusOr<SnapshotRecord> DecodeSnapshot(RecordReader values, absl::string_view row);
absl::StatusOr<CheckpointRecord> DecodeCheckpoint(RecordReader values, absl::string_view row);

}  // namespace mneme
