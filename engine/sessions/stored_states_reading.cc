// StoredStates: what is read of sessions, on a thread of its own.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "engine/sessions/stored_states.h"
#include "engine/status_payload.h"
#include "store/record.h"
#include "store/session_label.h"

namespace mneme {
namespace {

constexpr size_t kTurnsAtOnce = 256;

absl::Status DecodeHistory(absl::string_view text, StoredState& state) {
  RecordReader values(text);
  state.has_pending = values.Varint() != 0;
  state.marks.resize(values.Count(1));
  for (int32_t& mark : state.marks) mark = static_cast<int32_t>(values.Signed());
  return values.End("history of a snapshot");
}

}  // namespace

void StoredStates::Read(const Session& session, std::shared_ptr<const RewindPoint> kept_by) {
  waiting_.push_back({.session = static_cast<uint64_t>(session.id), .kept_by = std::move(kept_by)});
  Dispatch();
}

void StoredStates::ReadAgain(const Session& session, uint64_t suspect) {
  waiting_.push_back({.session = static_cast<uint64_t>(session.id), .suspect = suspect});
  Dispatch();
}

void StoredStates::Look(std::function<void()> work) {
  absl::MutexLock lock(&mu_);
  reads_.push_back({.look = std::move(work)});
}

std::optional<StoredState> StoredStates::TakeRead(const Session& session) {
  const auto found = std::find_if(read_.begin(), read_.end(), [&](const StoredState& state) {
    return state.record.id == static_cast<uint64_t>(session.id);
  });
  if (found == read_.end()) return std::nullopt;
  StoredState state = std::move(*found);
  read_.erase(found);
  return state;
}

// What is read of one session arrives in order.
void StoredStates::LeaveRead(const Session& session) {
  const auto id = static_cast<uint64_t>(session.id);
  if (const auto state = TakeRead(session); state.has_value()) return ReturnBuffer(state->buffer);
  const auto waiting = std::find_if(waiting_.begin(), waiting_.end(),
                                    [&](const ReadJob& job) { return job.session == id; });
  if (waiting == waiting_.end()) {
    left_.push_back(id);
  } else {
    waiting_.erase(waiting);
  }
}

void StoredStates::TakeIn(StoredState state) {
  const auto left = std::find(left_.begin(), left_.end(), state.record.id);
  if (left == left_.end()) {
    read_.push_back(std::move(state));
    return;
  }
  left_.erase(left);
  ReturnBuffer(state.buffer);
}

// Gives those that wait to be read a buffer, in order, but for those that are being written.
void StoredStates::Dispatch() {
  const auto is_written = [this](uint64_t session) {
    return std::any_of(writing_.begin(), writing_.end(),
                       [session](const auto& one) { return one.second.session == session; });
  };
  for (auto next = waiting_.begin(); next != waiting_.end() && !free_to_load_.empty();) {
    if (is_written(next->session)) {
      ++next;
      continue;
    }
    ReadJob job = std::move(*next);
    next = waiting_.erase(next);
    job.buffer = free_to_load_.back();
    free_to_load_.pop_back();
    absl::MutexLock lock(&mu_);
    reads_.push_back(std::move(job));
  }
}

void StoredStates::ReadFiles() {
  const auto ready = [this]()
                         ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !reads_.empty() || closing_; };
  while (true) {
    ReadJob job;
    {
      absl::MutexLock lock(&mu_, absl::Condition(&ready));
      if (closing_) return;
      job = std::move(reads_.front());
      reads_.pop_front();
    }
    if (job.look != nullptr) {
      job.look();
      absl::MutexLock lock(&mu_);
      Wake();
      continue;
    }
    StoredState state = ReadFile(job);
    absl::MutexLock lock(&mu_);
    arrived_.push_back(std::move(state));
    Wake();
  }
}

StoredState StoredStates::ReadFile(const ReadJob& job) {
  StoredState state = {.buffer = job.buffer};
  state.record.id = job.session;
  state.status = ReadSession(job, state);
  if (!absl::IsDataLoss(state.status)) return state;
  // The store mends what was found to be damaged, before its next commit, and takes the session
  // back to the last state that it can still reach.
  const absl::Status mended = store_.Apply({});
  const std::optional<SessionRecord> left = store_.Find(job.session);
  const int64_t stood = state.record.position();
  const bool is_lost = !left.has_value() || left->status == SessionStatus::kLost;
  state.status = WithPosition(
      WithReason(absl::DataLossError(absl::StrCat(
                     "the stored state of the session, at position ", stood,
                     ", is damaged: ", state.status.message(), "; ",
                     !mended.ok() ? std::string(mended.message())
                     : is_lost    ? std::string("the session is lost")
                                  : absl::StrCat("it goes on from position ", left->position()))),
                 kReasonSessionLost),
      is_lost ? stood : left->position());
  return state;
}

// Its file is whole, and so are the rows of the log: one of them is not what was written there.
absl::Status StoredStates::DropSuspect(const SessionRecord& record, uint64_t snapshot) {
  const std::string session = SessionLabel(record.name, record.owner, record.id);
  if (snapshot != 0) {
    LOG(ERROR) << "snapshot " << snapshot << " of " << session
               << ": with the log behind it, it leads to another state than the session had after "
               << record.fed_tokens << " tokens, and is set aside";
    return store_.Apply({DropDamagedSnapshot{record.id, snapshot}});
  }
  LOG(ERROR) << session << ": its whole log leads to another state than it had after "
             << record.fed_tokens << " tokens";
  MNEME_RETURN_IF_ERROR(store_.Apply({ChangeSession{.session = record.id, .lost = true}}));
  return absl::DataLossError("its log leads to another state than it had when it was stored");
}

absl::Status StoredStates::ReadSession(const ReadJob& job, StoredState& state) {
  const uint64_t id = state.record.id;
  const RewindPoint* const kept_by = job.kept_by.get();
  const std::optional<SessionRecord> record = store_.Find(id);
  if (!record.has_value()) {
    return absl::NotFoundError(absl::StrCat("session ", id, " is not stored any more"));
  }
  state.record = *record;
  if (job.suspect.has_value()) MNEME_RETURN_IF_ERROR(DropSuspect(*record, *job.suspect));
  MNEME_ASSIGN_OR_RETURN(std::vector<SnapshotRecord> snapshots, store_.ReadSnapshots(id));
  absl::Status unusable;
  if (kept_by != nullptr) {
    std::erase_if(snapshots, [&](const SnapshotRecord& snapshot) {
      return !snapshot.has_facts || !kept_by->Keeps(snapshot);
    });
    MNEME_RETURN_IF_ERROR(ReadNewest(std::move(snapshots), state, unusable));
    return state.in_buffer ? absl::OkStatus() : absl::NotFoundError("no snapshot can be used");
  }
  MNEME_RETURN_IF_ERROR(ReadNewest(std::move(snapshots), state, unusable));
  const bool from_the_start = record->durability == Durability::kTurn && record->first_turn == 0;
  if (!state.in_buffer && !from_the_start) {
    if (absl::IsFailedPrecondition(unusable)) {
      // Which file and which numbers is in the log.
      return WithReason(
          absl::FailedPreconditionError(absl::StrCat(
              "session \"", record->name,
              "\" has only snapshots of another state format (of another device, --state-dtype, "
              "--max-context, --engram-capacity or a newer version), and its log does not lead "
              "back to its beginning; it stays as it is stored")),
          kReasonOtherModel);
    }
    return absl::DataLossError(unusable.ok() ? "there is no snapshot" : unusable.message());
  }
  // The snapshot of one that is not durable stays all of it until its next turn.
  return record->durability == Durability::kTurn ? ReadTurns(state) : absl::OkStatus();
}

absl::Status StoredStates::ReadNewest(std::vector<SnapshotRecord> snapshots, StoredState& state,
                                      absl::Status& unusable) {
  const uint64_t id = state.record.id;
  while (!snapshots.empty() && !state.in_buffer) {
    const SnapshotRecord snapshot = std::move(snapshots.back());
    snapshots.pop_back();
    uint64_t failed = snapshot.id;
    const absl::Status status = ReadSnapshot(snapshot, state, failed);
    if (status.ok()) continue;
    unusable = status;
    LOG(ERROR) << "snapshot " << failed << " of "
               << SessionLabel(state.record.name, state.record.owner, id) << ": "
               << status.message();
    if (!absl::IsDataLoss(status) && !absl::IsNotFound(status)) continue;
    MNEME_RETURN_IF_ERROR(store_.Apply({DropDamagedSnapshot{id, failed}}));
    // With it go those that go on from it.
    MNEME_ASSIGN_OR_RETURN(const std::vector<SnapshotRecord> left, store_.ReadSnapshots(id));
    std::erase_if(snapshots, [&](const SnapshotRecord& one) {
      return std::none_of(left.begin(), left.end(),
                          [&](const SnapshotRecord& other) { return other.id == one.id; });
    });
  }
  return absl::OkStatus();
}

absl::Status StoredStates::ReadSnapshot(const SnapshotRecord& snapshot, StoredState& state,
                                        uint64_t& failed) {
  const int64_t bytes = TotalBytes(pool_.Filled(/*slot=*/0, snapshot.position));
  std::string history;
  MNEME_RETURN_IF_ERROR(snapshots_.Read(snapshot, BytesOf(state.buffer, bytes), history, failed));
  MNEME_RETURN_IF_ERROR(DecodeHistory(history, state));
  state.in_buffer = true;
  state.snapshot = snapshot.id;
  state.tokens = snapshot.position;
  state.turn = snapshot.turn;
  state.facts = snapshot.facts;
  return absl::OkStatus();
}

absl::Status StoredStates::ReadTurns(StoredState& state) {
  const SessionRecord& record = state.record;
  for (int64_t next = state.turn; next < record.turns;) {
    MNEME_ASSIGN_OR_RETURN(std::vector<Turn> turns,
                           store_.ReadTurns(record.id, next, kTurnsAtOnce));
    next += static_cast<int64_t>(turns.size());
    std::move(turns.begin(), turns.end(), std::back_inserter(state.turns));
  }
  return absl::OkStatus();
}

}  // namespace mneme
