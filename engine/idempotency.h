// Requests that carried an idempotency key, and how they ended: repeating one feeds nothing twice.
//
// Bounds. At most `max_keys` keys are kept; beyond, those whose requests ended longest ago are
// forgotten, and such a request, repeated, runs again. A request's events are recorded while it
// runs, up to kMaxRecordBytes each and `max_bytes` together; beyond, the events (not the key) of
// this one, or of those that ended longest ago, are dropped: repeated, such a request is refused
// with its position.
#pragma once

#include <cstdint>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/request.h"

namespace mneme {

enum class KeyState {
  kRunning,   // waits or runs
  kFinished,  // ended with OK: the record can be replayed
  kBroken,    // ended otherwise, after something was fed
  kUndone,    // ended in either way, and what it did was edited away since
  kErased,    // ended with OK, and what it answered was erased with segments that were forgotten
};

struct KeyRecord {
  std::pair<std::string, std::string> key;  // owner, idempotency key
  uint64_t digest = 0;                      // of the request
  KeyState state = KeyState::kRunning;
  std::vector<TokenEvent> events;  // adjacent ones merged
  int64_t bytes = 0;               // of the events
  bool dropped_events = false;
  int64_t position = 0;    // of the session when the request ended
  int64_t session_id = 0;  // Session::id; 0: there was none
  int followers = 0;       // requests that are told what it says while it runs
};

// Owned and called by one thread. Records keep their address until they are forgotten; running ones
// are never forgotten.
class IdempotencyTable {
 public:
  static constexpr int64_t kMaxRecordBytes = int64_t{1} << 20;

  IdempotencyTable(int max_keys, int64_t max_bytes) : max_keys_(max_keys), max_bytes_(max_bytes) {}

  // Null if the key is unknown.
  KeyRecord* Find(const std::string& owner, const std::string& key);
  // A running record for a key that is unknown.
  KeyRecord& Insert(const std::string& owner, const std::string& key, uint64_t digest);
  void Append(KeyRecord& record, const TokenEvent& event);
  // The request ended, in a session that has `session_id` and stands at `position`. Nothing may be
  // appended any more.
  void End(KeyRecord& record, KeyState state, int64_t position, int64_t session_id);
  // Drops the events of requests that ended in that session beyond `position`: the finished ones
  // are kErased.
  void ForgetAnswers(int64_t session_id, int64_t position);
  // The session went back to that position, for another request: what was done beyond is kUndone.
  void Undo(int64_t session_id, int64_t position);
  // As if the request had never come: it fed nothing.
  void Forget(KeyRecord& record);
  // All that ended in a session beyond a position that it went back to.
  void ForgetBeyond(int64_t session_id, int64_t position);

  int size() const { return static_cast<int>(records_.size()); }
  int64_t bytes() const { return bytes_; }

 private:
  using Records = std::list<KeyRecord>;

  void DropEvents(KeyRecord& record);

  const int max_keys_;
  const int64_t max_bytes_;
  int64_t bytes_ = 0;
  Records running_;
  Records ended_;  // oldest first
  // In ended_: those before it hold no events any more.
  Records::iterator oldest_kept_ = ended_.end();
  absl::flat_hash_map<std::pair<std::string, std::string>, Records::iterator> records_;
};

}  // namespace mneme
