#include "store/rewind_point.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

// The log of a session, and its states between turns: state i is the one in front of turns[i].
class LogStates {
 public:
  LogStates(const SessionRecord& session, std::span<const Turn> turns,
            std::span<const SnapshotRecord> snapshots)
      : session_(session), turns_(turns), snapshots_(snapshots) {
    first_.turns = session.first_turn;
    first_is_known_ = session.first_turn == 0;
    for (const SnapshotRecord& snapshot : snapshots) {
      if (first_is_known_ || snapshot.turn != session.first_turn) continue;
      first_.fed_tokens = snapshot.position;
      first_.pending_token = snapshot.pending_token;
      first_.facts = snapshot.facts;
      first_is_known_ = snapshot.has_facts;
    }
    if (!first_is_known_ && !turns.empty()) first_.fed_tokens = turns.front().begin;
  }

  int64_t turns() const { return static_cast<int64_t>(turns_.size()); }
  const Turn& turn(int64_t i) const { return turns_[static_cast<size_t>(i)]; }

  RewindPoint At(int64_t i) const {
    if (i == 0) return first_;
    const Turn& last = turn(i - 1);
    return {.turns = session_.first_turn + i,
            .fed_tokens = last.end(),
            .pending_token = last.pending_token,
            .state_digest = last.state_digest,
            .facts = last.facts};
  }
  int64_t fed(int64_t i) const { return i == 0 ? first_.fed_tokens : turn(i - 1).end(); }

  // Whether snapshots, or nothing, and turns lead to state i.
  bool Reaches(int64_t i) const {
    if (i == 0 && !first_is_known_) return false;
    if (session_.first_turn == 0) return true;
    return std::any_of(snapshots_.begin(), snapshots_.end(), [&](const SnapshotRecord& one) {
      return one.turn >= session_.first_turn && one.turn <= session_.first_turn + i;
    });
  }

  // Whether the pending token of state i is in the conversation as it went on.
  bool KeptPending(int64_t i) const {
    const std::optional<int32_t> pending = At(i).pending_token;
    for (; pending.has_value() && i < turns(); ++i) {
      for (const Event& event : turn(i).events) {
        const auto* fed = std::get_if<TokensFed>(&event);
        if (fed != nullptr && !fed->tokens.empty()) return fed->tokens.front() == *pending;
      }
      if (!turn(i).pending_token.has_value()) return false;
    }
    return true;
  }

  absl::Status NotThere(const std::string& what) const {
    int64_t least = 0;
    while (least < turns() && !Reaches(least)) ++least;
    return absl::OutOfRangeError(absl::StrCat("session ", session_.name, " cannot go back to ",
                                              what, ": its log leads to positions ", fed(least),
                                              " to ", session_.position()));
  }

 private:
  const SessionRecord& session_;
  const std::span<const Turn> turns_;
  const std::span<const SnapshotRecord> snapshots_;
  RewindPoint first_;
  bool first_is_known_ = false;
};

absl::StatusOr<std::string> FactsOf(const FactsAfter& facts, const RewindPoint& before,
                                    const Turn& part) {
  if (facts == nullptr) return std::string();
  return facts(before.facts, part);
}

// The first `tokens` tokens of turns[i], of which there are more, or whose pending token goes.
absl::StatusOr<RewindPoint> Within(const LogStates& states, int64_t i, int64_t tokens,
                                   const FactsAfter& facts) {
  RewindPoint point = states.At(i);
  const Turn& whole = states.turn(i);
  Turn part = {.begin = whole.begin, .facts = whole.facts};
  for (const Event& event : whole.events) {
    const int64_t left = whole.begin + tokens - part.end();
    if (left == 0) break;
    part.events.push_back(event);
    if (auto* fed = std::get_if<TokensFed>(&part.events.back())) {
      fed->tokens.resize(std::min(fed->tokens.size(), static_cast<size_t>(left)));
    }
  }
  if (part.end() != whole.begin + tokens) {
    return states.NotThere(absl::StrCat("position ", whole.begin + tokens,
                                        ", which is within a state that was imported"));
  }
  MNEME_ASSIGN_OR_RETURN(part.facts, FactsOf(facts, point, part));
  point.fed_tokens = part.end();
  point.pending_token.reset();
  point.state_digest = 0;
  point.facts = part.facts;
  point.part = std::move(part);
  return point;
}

// The state where so many tokens had been fed, and none was pending.
absl::StatusOr<RewindPoint> FindFed(const LogStates& states, int64_t fed, const FactsAfter& facts,
                                    const std::string& what) {
  for (int64_t i = states.turns(); i >= 0; --i) {
    if (states.fed(i) > fed) continue;
    if (!states.Reaches(i)) break;
    RewindPoint point = states.At(i);
    if (point.fed_tokens < fed) {
      if (i == states.turns()) break;
      return Within(states, i, fed - point.fed_tokens, facts);
    }
    if (!point.pending_token.has_value()) return point;
    Turn part = {.begin = fed};
    MNEME_ASSIGN_OR_RETURN(part.facts, FactsOf(facts, point, part));
    point.pending_token.reset();
    point.facts = part.facts;
    point.part = std::move(part);
    return point;
  }
  return states.NotThere(what);
}

}  // namespace

bool LeadsTo(const SnapshotRecord& snapshot, const CheckpointRecord& checkpoint) {
  return checkpoint.turns < 0 ? snapshot.position <= checkpoint.position
                              : snapshot.turn <= checkpoint.turns;
}

absl::StatusOr<RewindPoint> FindPosition(const SessionRecord& session, std::span<const Turn> turns,
                                         std::span<const SnapshotRecord> snapshots,
                                         int64_t position, const FactsAfter& facts) {
  const LogStates states(session, turns, snapshots);
  for (int64_t i = states.turns(); i >= 0 && states.Reaches(i); --i) {
    RewindPoint point = states.At(i);
    const int64_t there = point.fed_tokens + (point.pending_token.has_value() ? 1 : 0);
    if (there == position && states.KeptPending(i)) return point;
  }
  return FindFed(states, position, facts, absl::StrCat("position ", position));
}

absl::StatusOr<RewindPoint> FindFed(const SessionRecord& session, std::span<const Turn> turns,
                                    std::span<const SnapshotRecord> snapshots, int64_t fed,
                                    const FactsAfter& facts) {
  return FindFed(LogStates(session, turns, snapshots), fed, facts, absl::StrCat("position ", fed));
}

absl::StatusOr<RewindPoint> FindCheckpoint(const SessionRecord& session,
                                           std::span<const Turn> turns,
                                           std::span<const SnapshotRecord> snapshots,
                                           const CheckpointRecord& checkpoint,
                                           const FactsAfter& facts) {
  const LogStates states(session, turns, snapshots);
  const std::string what = absl::StrCat("checkpoint ", checkpoint.name);
  const int64_t i = checkpoint.turns - session.first_turn;
  if (checkpoint.turns >= 0) {
    if (i < 0 || i > states.turns() || !states.Reaches(i)) return states.NotThere(what);
    return states.At(i);
  }
  return FindFed(states, checkpoint.position, facts, what);
}

}  // namespace mneme
