// SessionManager: what time asks for: snapshots, parking of sessions that nobody uses, and
// deletion; and its books: what sessions take, and whether each slab has one owner.
#include <algorithm>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/log_fields.h"
#include "base/status_macros.h"
#include "engine/sessions/session_manager.h"

namespace mneme {
namespace {

// Fewer are fed again as fast as a snapshot is read.
constexpr int64_t kLeastTokensOfTurn = 8;

}  // namespace

void SessionManager::SnapshotIfDue(Session& session) {
  if (options_.log == nullptr || options_.snapshot_tokens <= 0 || session.busy) return;
  if (session.durability == Durability::kNone) return;  // one is parked, or not in the store
  const int64_t fed = session.fed_tokens - session.snapshot;
  if (fed >= options_.snapshot_tokens) {
    parking_.Snapshot(session);
    return;
  }
  if (fed < kLeastTokensOfTurn || session.residence != Residence::kResident) return;
  int64_t bytes = 0;
  for (const ByteRange& range : pool_.Filled(session.slot, session.fed_tokens)) {
    bytes += range.end - range.begin;
  }
  if (turn_snapshots_.Has(bytes, Now()) && parking_.Snapshot(session)) turn_snapshots_.Take(bytes);
}

bool SessionManager::SnapshotAll() {
  bool left = false;
  parking_.SaveAll();
  table_.ForEach([&](Session& session) {
    if (!session.logged || session.busy) return;
    const bool durable = session.durability == Durability::kTurn;
    if (durable ? session.snapshot_turn == session.turns : parking_.IsRefusedForGood(session)) {
      return;
    }
    if (session.residence == Residence::kResident) {
      left = true;
      // What is not durable is parked for good: nothing of it may go on behind its snapshot.
      durable ? parking_.Snapshot(session) : parking_.ParkInStore(session);
    } else if (session.residence == Residence::kParked && !durable) {
      left = true;  // when those that have slabs are written
      if (free_slabs() > 0) parking_.Fetch(session);
    }
  });
  return left;
}

int64_t SessionManager::SessionsOf(const std::optional<std::string>& owner) const {
  const int64_t here = owner.has_value() ? table_.CountOf(*owner) : table_.size();
  if (options_.log == nullptr) return here;
  const SessionStore& store = options_.log->store();  // which does not have the newest ones yet
  return std::max(here, owner.has_value() ? store.UsageOf(*owner).sessions : store.sessions());
}

SessionUsage SessionManager::UsageOf(const std::optional<std::string>& owner) const {
  SessionUsage usage = {.sessions = SessionsOf(owner)};
  if (owner.has_value() && options_.owner_limit != nullptr) {
    usage.max_sessions = std::max(options_.owner_limit(*owner), 0);
  }
  if (options_.log == nullptr) return usage;
  const SessionStore& store = options_.log->store();
  const OwnerUsage stored = owner.has_value() ? store.UsageOf(*owner) : store.UsageOfAll();
  usage.stored_bytes = stored.bytes;
  usage.checkpoints = stored.checkpoints;
  if (owner.has_value()) {
    usage.checkpoints = CheckpointsOf(*owner);
    usage.max_stored_bytes = store.limits().bytes_per_owner;
    usage.max_checkpoints = std::max(options_.max_checkpoints_per_owner, 0);
  }
  return usage;
}

std::vector<SessionInfo> SessionManager::Unsaved() const {
  std::vector<SessionInfo> unsaved;
  if (options_.log == nullptr) return unsaved;
  table_.ForEach([&](const Session& session) {
    if (session.durability == Durability::kTurn || session.residence == Residence::kStored) return;
    unsaved.push_back(Describe(session));
  });
  return unsaved;
}

void SessionManager::Expire() {
  while (Session* session = table_.FirstExpired(Now())) {
    if (options_.log != nullptr) {
      // Its time begins anew, for when it cannot be parked now.
      table_.MarkBusy(*session);
      table_.MarkIdle(*session, Now());
      parking_.Park(*session, /*newcomer=*/false);
      continue;
    }
    LogFields("session_expired")
        .Add("owner", session->key.owner)
        .Add("session", session->key.name)
        .Add("tokens", session->position())
        .Add("ttl", absl::FormatDuration(session->ttl))
        .Write(LogSeverity::kInfo);
    Remove(*session, SessionEnd::kExpired);
  }
}

void SessionManager::Settle() {
  if (options_.log != nullptr) options_.log->Settle();
  parking_.Settle();
  for (const SessionKey& key : parking_.TakeStored()) DropIfUnused(key);
  BeginRewinds();
  SnapshotCheckpoints();
  parking_.KeepPlacesFree();
  if (options_.log == nullptr) return;
  if (options_.retention != absl::InfiniteDuration()) DeleteOld();
  if (Now() >= next_lag_) PublishLag();
}

absl::Duration SessionManager::NextUpkeep() const {
  const bool deletes_old =
      options_.log != nullptr && options_.retention != absl::InfiniteDuration();
  return deletes_old ? std::min(NextExpiry(), next_deletion_) : NextExpiry();
}

// A few at a time: there may be many.
void SessionManager::DeleteOld() {
  constexpr size_t kAtOnce = 256;
  constexpr absl::Duration kPause = absl::Seconds(10);  // between two passes over all names
  NoteDate();
  if (Now() < next_deletion_) return;
  const absl::Time oldest = clock_.Now() - options_.retention;
  const std::vector<SessionRecord> records =
      options_.log->store().List(std::nullopt, "", deleted_to_, kAtOnce);
  deleted_to_ = records.size() < kAtOnce ? std::pair<std::string, std::string>()
                                         : std::pair(records.back().owner, records.back().name);
  if (records.size() < kAtOnce) next_deletion_ = Now() + kPause;
  for (const SessionRecord& record : records) {
    const SessionKey key = {record.owner, record.name};
    const Session* session = Find(key);
    if ((session == nullptr ? record.last_used : session->last_used) > oldest) continue;
    if (IsClaimed(key)) continue;
    // Those of another model are for who serves that to delete, or for their owner.
    if (record.model != options_.log->options().model) continue;
    LogFields("session_deleted")
        .Add("owner", key.owner)
        .Add("session", key.name)
        .Add("tokens", record.position())
        .Add("retention", absl::FormatDuration(options_.retention))
        .Write(LogSeverity::kInfo);
    (void)Delete(key, [](const absl::Status& status) {
      if (!status.ok()) LOG(ERROR) << "an old session was not deleted: " << status.message();
    });
  }
}

// Deletion goes by dates, as nothing else outlives a process. One that was set is not time that
// passed: whoever set it by mistake has an hour to find that out.
void SessionManager::NoteDate() {
  constexpr absl::Duration kJump = absl::Minutes(1);
  constexpr absl::Duration kPause = absl::Hours(1);
  const absl::Time started = clock_.Now() - Now();  // by today's date
  const absl::Time before = std::exchange(started_, started);
  if (before != absl::InfinitePast() && absl::AbsDuration(started - before) > kJump) {
    next_deletion_ = Now() + kPause;
    LOG(WARNING) << "the date was set by " << absl::FormatDuration(started - before)
                 << ": no session is deleted for its age within the next "
                 << absl::FormatDuration(kPause);
  }
}

// Once a second, as it looks at all that are here.
void SessionManager::PublishLag() {
  next_lag_ = Now() + absl::Seconds(1);
  int64_t tokens = 0;
  table_.ForEach([&](const Session& session) {
    if (session.durability == Durability::kTurn) tokens += session.fed_tokens - session.snapshot;
  });
  stats_.snapshot_lag_tokens.Set(tokens);
}

void SessionManager::PublishGauges() {
  if (options_.log != nullptr) {
    const SessionTotals totals = options_.log->store().TotalsFor(options_.log->options().model);
    const int64_t elsewhere = totals.all - totals.lost - totals.of_other_models - table_.size();
    stats_.sessions_stored.Set(std::max<int64_t>(0, elsewhere));
    stats_.sessions_lost.Set(totals.lost);
    stats_.sessions_of_other_models.Set(totals.of_other_models);
  }
  stats_.slabs_used.Set(pool_.used_slots());
  stats_.slabs_ephemeral.Set(ephemeral_slabs_);
  stats_.sessions.Set(table_.size());
  parking_.PublishGauges();
  stats_.slab_copy_bytes.Add(pool_.copied_bytes() - stats_.slab_copy_bytes.value());
}

absl::Status SessionManager::CheckIntegrity(std::span<const int> held, int claims) const {
  std::vector<int> owners(pool_.slots(), 0);
  absl::Status misplaced;
  table_.ForEach([&](const Session& session) {
    if (session.slot >= 0) ++owners.at(session.slot);
    if ((session.slot < 0) !=
        (session.residence == Residence::kParked || session.residence == Residence::kStored)) {
      misplaced = absl::InternalError(absl::StrCat("session \"", session.key.name, "\" has slab ",
                                                   session.slot, " by mistake"));
    }
  });
  MNEME_RETURN_IF_ERROR(misplaced);
  for (const int slot : held) ++owners.at(slot);
  for (int slot = 0; slot < pool_.slots(); ++slot) {
    if (owners[slot] != (pool_.taken(slot) ? 1 : 0)) {
      return absl::InternalError(absl::StrCat("slab ", slot, " is ",
                                              pool_.taken(slot) ? "taken" : "free", " and has ",
                                              owners[slot], " owners"));
    }
  }
  if (static_cast<int>(held.size()) != ephemeral_slabs_) {
    return absl::InternalError(
        absl::StrCat(held.size(), " slabs are ephemeral, counted ", ephemeral_slabs_));
  }
  if (claims + commands_ != static_cast<int>(claimed_.size())) {
    return absl::InternalError(absl::StrCat(claimed_.size(), " sessions are claimed by ", claims,
                                            " requests and ", commands_, " commands"));
  }
  absl::Status busy;
  table_.ForEach([&](const Session& session) {
    if (session.busy != IsClaimed(session.key)) {
      busy = absl::InternalError(absl::StrCat("session \"", session.key.name, "\" is ",
                                              session.busy ? "busy" : "idle", " by mistake"));
    }
  });
  return busy;
}

}  // namespace mneme
