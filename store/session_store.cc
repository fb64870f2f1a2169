#include "store/session_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "store/owner_limit.h"

namespace mneme {

absl::StatusOr<std::unique_ptr<SessionStore>> SessionStore::Open(FileSystem& files,
                                                                 std::string folder,
                                                                 const Options& options,
                                                                 StoreReport& report) {
  std::unique_ptr<SessionStore> store(new SessionStore(files, std::move(folder), options));
  MNEME_RETURN_IF_ERROR(store->Start(report));
  MNEME_RETURN_IF_ERROR(store->LoadModelNames());
  store->Note(report, /*opening=*/true);
  store->NoteRoom();
  store->thread_ = std::thread([self = store.get()] { self->Run(); });
  return store;
}

absl::Status SessionStore::CheckLimit(const std::string& owner, int64_t own_bytes) const {
  constexpr int64_t kLeastTurn = 32;  // no turn that feeds something has fewer
  const int64_t limit = options_.limits.bytes_per_owner, used = UsageOf(owner).bytes;
  if (limit == 0 || used - own_bytes + kLeastTurn <= limit) return absl::OkStatus();
  return OverLimit(OwnerLimit::kBytes, absl::StrCat("the key has ", used, " bytes stored of ",
                                                    limit, " allowed, and a turn does not fit"));
}

void SessionStore::NoteRoom() {
  const absl::Status room = CheckRoom(0);
  if (room.ok()) return;
  LOG(WARNING) << "the session store takes nothing but deletions until there is room: "
               << room.message();
  absl::MutexLock lock(&mu_);
  stats_.last_error = room;
}

SessionStore::~SessionStore() {
  if (!thread_.joinable()) return;
  {
    absl::MutexLock lock(&mu_);
    closing_ = true;
  }
  thread_.join();
}

uint64_t SessionStore::NewId() {
  absl::MutexLock lock(&mu_);
  return next_id_++;
}

absl::Status SessionStore::Submit(std::vector<Change> changes, Done done, bool may_wait) {
  absl::MutexLock lock(&mu_);
  if (queue_.size() >= options_.queue_batches) {
    return absl::ResourceExhaustedError(absl::StrCat("the session store has ", queue_.size(),
                                                     " changes to commit, and takes no more"));
  }
  queue_.push_back({std::move(changes), std::move(done), may_wait});
  if (!may_wait) ++urgent_;
  return absl::OkStatus();
}

absl::Status SessionStore::Apply(std::vector<Change> changes) {
  absl::Notification finished;
  absl::Status result;
  MNEME_RETURN_IF_ERROR(Submit(std::move(changes), [&](const absl::Status& status) {
    result = status;
    finished.Notify();
  }));
  finished.WaitForNotification();
  return result;
}

std::optional<SessionRecord> SessionStore::Find(absl::string_view owner,
                                                absl::string_view name) const {
  absl::MutexLock lock(&mu_);
  const auto found = by_name_.find(Name(owner, name));
  if (found == by_name_.end()) return std::nullopt;
  return **found;
}

std::optional<SessionRecord> SessionStore::Find(uint64_t id) const {
  absl::MutexLock lock(&mu_);
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return std::nullopt;
  return *found->second;
}

std::vector<SessionRecord> SessionStore::List(const std::optional<std::string>& owner,
                                              absl::string_view name_prefix,
                                              const std::pair<std::string, std::string>& after,
                                              size_t limit) const {
  absl::MutexLock lock(&mu_);
  Name begin(after.first, after.second);
  // Of one owner, names that begin so are together.
  if (owner.has_value()) begin = std::max(begin, Name(*owner, name_prefix));
  std::vector<SessionRecord> listed;
  for (auto next = by_name_.lower_bound(begin); next != by_name_.end(); ++next) {
    const SessionRecord& session = **next;
    const bool begins_so = absl::StartsWith(session.name, name_prefix);
    if (listed.size() >= limit) break;
    if (owner.has_value() && (session.owner != *owner || !begins_so)) break;
    if (Name(session.owner, session.name) == Name(after.first, after.second)) continue;
    if (begins_so) listed.push_back(session);
  }
  return listed;
}

size_t SessionStore::Count(const std::optional<std::string>& owner,
                           absl::string_view name_prefix) const {
  constexpr int kAtOnce = 1024;  // names, for which the lock is held
  if (name_prefix.empty()) {
    return static_cast<size_t>(owner.has_value() ? UsageOf(*owner).sessions : sessions());
  }
  size_t count = 0;
  std::pair<std::string, std::string> from(owner.value_or(""),
                                           owner.has_value() ? name_prefix : "");
  for (bool ended = false; !ended;) {
    absl::MutexLock lock(&mu_);
    auto next = by_name_.lower_bound(Name(from.first, from.second));
    int looked_at = 0;
    for (; next != by_name_.end() && looked_at < kAtOnce; ++next, ++looked_at) {
      const SessionRecord& session = **next;
      const bool begins_so = absl::StartsWith(session.name, name_prefix);
      if (owner.has_value() && (session.owner != *owner || !begins_so)) break;
      if (begins_so) ++count;
    }
    ended = next == by_name_.end() || looked_at < kAtOnce;
    if (!ended) from = {(*next)->owner, (*next)->name};
  }
  return count;
}

int64_t SessionStore::times_mended() const {
  absl::MutexLock lock(&mu_);
  return times_mended_;
}

bool SessionStore::names_in_doubt() const {
  absl::MutexLock lock(&mu_);
  return names_in_doubt_;
}

absl::Status SessionStore::TrustNames() {
  absl::MutexLock disk(&disk_mu_);
  MNEME_RETURN_IF_ERROR(catalogue_->Delete({.kind = RowKind::kDoubt}));
  absl::MutexLock lock(&mu_);
  names_in_doubt_ = false;
  return absl::OkStatus();
}

absl::Status SessionStore::Noted(absl::Status status) {
  if (absl::IsDataLoss(status)) broken_ = damaged_ = true;
  return status;
}

absl::StatusOr<std::vector<Turn>> SessionStore::ReadTurns(uint64_t session, int64_t first,
                                                          size_t limit) {
  absl::MutexLock disk(&disk_mu_);
  int64_t logged = 0;
  {
    absl::MutexLock lock(&mu_);
    const auto found = sessions_.find(session);
    if (found == sessions_.end()) {
      return absl::NotFoundError(absl::StrCat("there is no session ", session));
    }
    logged = found->second->turns;
    if (first < found->second->first_turn || first > logged) {
      return absl::OutOfRangeError(absl::StrCat("turn ", first, " of session ", session,
                                                ": its log has turns from ",
                                                found->second->first_turn, " to ", logged));
    }
  }
  std::vector<Turn> turns;
  int64_t expected = first;
  MNEME_RETURN_IF_ERROR(Noted(catalogue_->Scan(
      RowKind::kTurn, session, NumberKey(static_cast<uint64_t>(first)),
      [&](const RowKey& row, RecordReader values) -> absl::StatusOr<bool> {
        if (turns.size() >= limit || NumberOf(row.key) != static_cast<uint64_t>(expected))
          return false;
        MNEME_ASSIGN_OR_RETURN(Turn turn, DecodeTurn(values, row.Name()));
        turns.push_back(std::move(turn));
        ++expected;
        return true;
      })));
  if (expected < logged && turns.size() < limit) {
    return Noted(absl::DataLossError(
        absl::StrCat("turn ", expected, " of session ", session, " is not in its log")));
  }
  return turns;
}

absl::StatusOr<std::vector<SnapshotRecord>> SessionStore::ReadSnapshots(uint64_t session) {
  absl::MutexLock disk(&disk_mu_);
  absl::StatusOr<std::vector<SnapshotRecord>> snapshots = SnapshotsOf(*catalogue_, session);
  MNEME_RETURN_IF_ERROR(Noted(snapshots.status()));
  return snapshots;
}

absl::StatusOr<std::vector<CheckpointRecord>> SessionStore::ReadCheckpoints(uint64_t session) {
  absl::MutexLock disk(&disk_mu_);
  absl::StatusOr<std::vector<CheckpointRecord>> checkpoints = CheckpointsOf(*catalogue_, session);
  MNEME_RETURN_IF_ERROR(Noted(checkpoints.status()));
  return checkpoints;
}

absl::StatusOr<std::optional<RequestRecord>> SessionStore::FindRequest(absl::string_view owner,
                                                                       absl::string_view key) {
  absl::MutexLock disk(&disk_mu_);
  const RowKey index = {.kind = RowKind::kRequestSession, .key = RequestKey(owner, key)};
  absl::StatusOr<std::optional<std::string>> found = catalogue_->Get(index);
  MNEME_RETURN_IF_ERROR(Noted(found.status()));
  if (!found->has_value()) return std::nullopt;
  const RowKey row = {
      .kind = RowKind::kRequest, .session = RecordReader(**found).Varint(), .key = index.key};
  found = catalogue_->Get(row);
  MNEME_RETURN_IF_ERROR(Noted(found.status()));
  if (!found->has_value()) {
    return Noted(absl::DataLossError(absl::StrCat(row.Name(), ": is missing")));
  }
  MNEME_ASSIGN_OR_RETURN(RequestRecord request, DecodeRequest(RecordReader(**found), row.Name()));
  request.session = row.session;
  return request;
}

bool SessionStore::MayHaveRequest(absl::string_view owner, absl::string_view key) const {
  absl::MutexLock lock(&mu_);
  return request_keys_.contains(RequestKey(owner, key));
}

int64_t SessionStore::sessions() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int64_t>(sessions_.size());
}

SessionTotals SessionStore::TotalsFor(uint64_t model) const {
  absl::MutexLock lock(&mu_);
  const auto all = static_cast<int64_t>(sessions_.size());
  const auto own = live_.find(model);
  return {.all = all,
          .lost = lost_,
          .of_other_models = all - lost_ - (own == live_.end() ? 0 : own->second)};
}

bool SessionStore::HasSessionsOf(uint64_t model) const {
  absl::MutexLock lock(&mu_);
  const auto own = live_.find(model);
  return own != live_.end() && own->second > 0;
}

std::string SessionStore::NameOfModel(uint64_t model) const {
  absl::MutexLock lock(&mu_);
  const auto found = models_.find(model);
  return found == models_.end() ? "" : found->second;
}

uint64_t SessionStore::SuccessorOf(uint64_t model) const {
  absl::MutexLock lock(&mu_);
  const auto found = successors_.find(model);
  return found == successors_.end() ? model : found->second;
}

absl::Status SessionStore::LoadModelNames() {
  absl::MutexLock disk(&disk_mu_);
  const absl::Status read = Noted(catalogue_->ScanAll(
      RowKind::kModel, [this](const RowKey& row, RecordReader values) -> absl::StatusOr<bool> {
        absl::MutexLock lock(&mu_);
        models_[NumberOf(row.key)] = std::string(values.Bytes());
        return true;
      }));
  return absl::IsDataLoss(read) ? absl::OkStatus() : read;  // nothing depends on them
}

void SessionStore::Note(const StoreReport& report, bool opening) {
  absl::MutexLock lock(&mu_);
  if (report.damage.empty() && report.fallen_back.empty() && report.in_doubt.empty()) return;
  if (opening && !report.set_aside.empty()) ++stats_.written_anew;
  if (!opening) ++times_mended_;
  // Where no row is, none is damaged.
  stats_.damaged += std::max<int64_t>(1, static_cast<int64_t>(report.damage.size()));
  stats_.fallen_back += static_cast<int64_t>(report.fallen_back.size() + report.in_doubt.size());
  // One that is not durable is lost with its process, whatever the disk has kept.
  stats_.lost += std::count_if(
      report.lost.begin(), report.lost.end(),
      [](const SessionRecord& session) { return session.durability == Durability::kTurn; });
}

std::string SessionStore::SnapshotPath(uint64_t snapshot) const {
  return absl::StrCat(folder_, "/slabs/", absl::Hex(snapshot, absl::kZeroPad16), ".slab");
}

OwnerUsage SessionStore::UsageOf(const std::string& owner) const {
  absl::MutexLock lock(&mu_);
  const auto found = usage_.find(owner);
  return found == usage_.end() ? OwnerUsage() : found->second;
}

OwnerUsage SessionStore::UsageOfAll() const {
  absl::MutexLock lock(&mu_);
  return usage_of_all_;
}

int64_t SessionStore::StoredBytesOf(absl::string_view owner, absl::string_view name) const {
  absl::MutexLock lock(&mu_);
  const auto found = by_name_.find(Name(owner, name));
  return found == by_name_.end() ? 0 : (*found)->stored_bytes();
}

StoreStats SessionStore::stats() const {
  absl::MutexLock lock(&mu_);
  StoreStats stats = stats_;
  stats.queued = static_cast<int64_t>(queue_.size());
  stats.names_in_doubt = names_in_doubt_;
  return stats;
}

}  // namespace mneme
