// Where a session was before: what of its log and its snapshots leads there.
//
// A log knows a session after each of its turns, and after each token that was fed. For a position,
// that is, so many tokens of the conversation:
//
//   after a turn     Where the session stood there at the end of a turn, it is as it was then the
//                    last time, the pending token included, which is then the position's last one.
//   within a turn    Elsewhere as many tokens have been fed, and there is no pending token.
//
// A pending token that was taken back is in no conversation: a position beyond it counts what was
// fed in its place.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "store/session_record.h"

namespace mneme {

// SessionRecord::facts after `turn`, a part of one: its beginning, with the facts of the whole one;
// or, without events, what takes a pending token back. `before`: facts in front of it. Called by
// threads that read the store.
using FactsAfter =
    std::function<absl::StatusOr<std::string>(absl::string_view before, const Turn& turn)>;

// What of a session is left, and how it was there.
struct RewindPoint {
  int64_t turns = 0;         // that are left whole
  std::optional<Turn> part;  // behind them: a turn's beginning, or what takes a pending token back
  int64_t fed_tokens = 0;
  std::optional<int32_t> pending_token;
  uint64_t state_digest = 0;
  std::string facts;

  // Whether a token that was drawn and not fed is gone here.
  bool takes_back_pending() const { return part.has_value() && part->events.empty(); }

  // Whether a session that goes back to here keeps them.
  bool Keeps(const SnapshotRecord& snapshot) const {
    return snapshot.turn <= turns && snapshot.position <= fed_tokens;
  }
  bool Keeps(const CheckpointRecord& checkpoint) const {
    const int64_t there = checkpoint.position + (checkpoint.has_pending_token ? 1 : 0);
    return checkpoint.turns <= turns && there <= fed_tokens + (pending_token.has_value() ? 1 : 0);
  }
};

// Whether a checkpoint can be had from a snapshot and the log behind it.
bool LeadsTo(const SnapshotRecord& snapshot, const CheckpointRecord& checkpoint);

// `turns`: all that the log has. OUT_OF_RANGE, naming the positions that there are; the error of
// `facts`.
absl::StatusOr<RewindPoint> FindPosition(const SessionRecord& session, std::span<const Turn> turns,
                                         std::span<const SnapshotRecord> snapshots,
                                         int64_t position, const FactsAfter& facts);
// The point where so many tokens had been fed, and none is pending.
absl::StatusOr<RewindPoint> FindFed(const SessionRecord& session, std::span<const Turn> turns,
                                    std::span<const SnapshotRecord> snapshots, int64_t fed,
                                    const FactsAfter& facts);
absl::StatusOr<RewindPoint> FindCheckpoint(const SessionRecord& session,
                                           std::span<const Turn> turns,
                                           std::span<const SnapshotRecord> snapshots,
                                           const CheckpointRecord& checkpoint,
                                           const FactsAfter& facts);

}  // namespace mneme
