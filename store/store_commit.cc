// The store's thread: one transaction, and one sync, for all batches that wait.
#include <algorithm>
#include <bit>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/timed_wait.h"
#include "store/change_applier.h"
#include "store/session_store.h"

namespace mneme {
namespace {

// Whether it has to be gone for good before that is told, and so may use what is reserved.
bool Erases(const Change& change) {
  return std::holds_alternative<DeleteSession>(change) ||
         std::holds_alternative<RewindSession>(change) ||
         std::holds_alternative<CutSession>(change) ||
         std::holds_alternative<DropCheckpoint>(change) ||
         std::holds_alternative<ForgetPast>(change);
}

std::optional<uint64_t> AddedSnapshot(const Change& change) {
  if (const auto* added = std::get_if<AddSnapshot>(&change)) return added->snapshot.id;
  const auto* forget = std::get_if<ForgetPast>(&change);
  if (forget == nullptr) return std::nullopt;
  return forget->snapshot.id;
}

// Whatever a file operation found that nobody who submits a batch can do anything about.
absl::Status AsDisksError(absl::Status status) {
  if (status.ok() || absl::IsResourceExhausted(status) || absl::IsDataLoss(status)) return status;
  return absl::UnavailableError(status.message());
}

}  // namespace

void SessionStore::Run() {
  bool gathers = false;
  while (true) {
    std::vector<Batch> batches;
    {
      absl::MutexLock lock(&mu_);
      const auto ready = [this]()
                             ABSL_SHARED_LOCKS_REQUIRED(mu_) { return urgent_ > 0 || closing_; };
      AwaitFor(mu_, absl::Condition(&ready), options_.lazy);
      if (queue_.empty() && closing_) break;
      const auto enough = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
        return queue_.size() >= options_.batches_per_commit || closing_;
      };
      if (gathers && urgent_ > 0) AwaitFor(mu_, absl::Condition(&enough), options_.gather);
      const size_t count = std::min(queue_.size(), options_.batches_per_commit);
      batches.assign(std::move_iterator(queue_.begin()),
                     std::move_iterator(queue_.begin() + static_cast<ptrdiff_t>(count)));
      queue_.erase(queue_.begin(), queue_.begin() + static_cast<ptrdiff_t>(count));
      const auto urgent =
          std::count_if(batches.begin(), batches.end(), [](const Batch& b) { return !b.may_wait; });
      urgent_ -= static_cast<size_t>(urgent);
      gathers = urgent > 1;
    }
    if (!batches.empty()) CommitBatches(std::move(batches));
    EraseIfDue(/*now=*/false);
    ProbeIfDue();
  }
  EraseIfDue(/*now=*/true);
  CloseInOrder();
}

// Leaves nothing in the WAL, whose every frame counts on all before it.
void SessionStore::CloseInOrder() {
  absl::MutexLock disk(&disk_mu_);
  if (broken_ || !catalogue_->CheckPlace().ok()) return;
  const absl::Status moved = catalogue_->Checkpoint(/*erase=*/true);
  if (!moved.ok()) {
    LOG(WARNING) << "the store's WAL stays beside its database: " << moved.message();
  }
}

// Whoever looks at stats().last_error sees that the disk is well again, though nobody commits.
void SessionStore::ProbeIfDue() {
  const absl::Duration now = RealClock().Monotonic();
  {
    absl::MutexLock lock(&mu_);
    if (stats_.last_error.ok() || now < next_probe_) return;
    next_probe_ = now + options_.probe_every;
  }
  absl::MutexLock disk(&disk_mu_);
  absl::Status well = catalogue_->CheckPlace();
  if (well.ok()) well = CheckRoom(0);
  if (well.ok()) well = Probe("probe.tmp");
  if (well.ok()) well = Mend();
  absl::MutexLock lock(&mu_);
  stats_.last_error = AsDisksError(std::move(well));
  if (stats_.last_error.ok()) LOG(INFO) << folder_ << ": the session store can be written again";
}

absl::Status SessionStore::Probe(const std::string& name) const {
  constexpr size_t kBytes = 4096;
  const std::string path = absl::StrCat(folder_, "/slabs/", name);
  const auto write = [&]() -> absl::Status {
    MNEME_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                           files_.Open(path, OpenMode::kOpenOrCreate));
    const std::vector<std::byte> bytes(kBytes);
    MNEME_RETURN_IF_ERROR(file->Write(0, bytes));
    return file->Sync();
  };
  const absl::Status written = write();
  const absl::Status removed = files_.Remove(path);
  if (!written.ok()) return AsDisksError(written);
  return absl::IsNotFound(removed) ? absl::OkStatus() : AsDisksError(removed);
}

absl::Status SessionStore::KnownToBeFull() const {
  {
    absl::MutexLock lock(&mu_);
    if (!absl::IsResourceExhausted(stats_.last_error)) return absl::OkStatus();
  }
  return CheckRoom(0);
}

void SessionStore::EraseIfDue(bool now) {
  absl::MutexLock disk(&disk_mu_);
  if (broken_ || erase_due_ == absl::InfiniteDuration()) return;
  if (!now && RealClock().Monotonic() < erase_due_) return;
  (void)Erase();
}

absl::Status SessionStore::Erase() {
  const absl::Status erased = catalogue_->Checkpoint(/*erase=*/true);
  if (erased.ok()) {
    erase_due_ = absl::InfiniteDuration();
    return erased;
  }
  LOG(ERROR) << "deleted rows are not erased yet: " << erased.message();
  broken_ = true;  // a catalogue that is written anew has none of them
  return Mend();
}

void SessionStore::CommitBatches(std::vector<Batch> batches) {
  std::vector<absl::Status> results(batches.size());
  {
    absl::MutexLock disk(&disk_mu_);
    StagedCommit group;
    absl::Status committed = catalogue_->CheckPlace();
    if (committed.ok()) committed = Mend();
    const absl::Status room = CheckRoom(0);
    // What makes room needs none; where the folder is gone, nothing that is written counts.
    if (committed.ok() && !(OnlyErase(batches) && absl::IsResourceExhausted(room))) {
      committed = room;
    }
    if (committed.ok()) committed = CommitOnce(batches, results, group);
    committed = AsDisksError(std::move(committed));
    if (committed.ok()) {
      Publish(group);
      const absl::Status cleaned = Clean(group);
      for (size_t i = 0; i < batches.size() && !cleaned.ok(); ++i) {
        const auto& changes = batches[i].changes;
        if (std::any_of(changes.begin(), changes.end(), Erases)) results[i].Update(cleaned);
      }
    } else {
      std::fill(results.begin(), results.end(), committed);
    }
    NoteRefused(batches, results);
    absl::MutexLock lock(&mu_);
    stats_.last_error = committed.ok() ? room : committed;
    next_probe_ = RealClock().Monotonic() + options_.probe_every;
    ++(committed.ok() ? stats_.commits : stats_.failed_commits);
    stats_.batches += std::count_if(results.begin(), results.end(),
                                    [](const absl::Status& result) { return result.ok(); });
  }
  for (size_t i = 0; i < batches.size(); ++i) batches[i].done(results[i]);

  absl::MutexLock disk(&disk_mu_);
  if (broken_) return;
  const absl::Status moved = catalogue_->Checkpoint(/*erase=*/false, options_.wal_pages);
  if (!moved.ok()) {
    LOG(ERROR) << "the store's WAL could not be moved into its database: " << moved.message();
    broken_ = !absl::IsResourceExhausted(moved) || catalogue_->sync_failed();
  }
}

// Their rows may still be on the disk, until a commit succeeds.
void SessionStore::NoteRefused(const std::vector<Batch>& batches,
                               const std::vector<absl::Status>& results) {
  for (size_t i = 0; i < batches.size(); ++i) {
    if (results[i].ok()) continue;
    for (const Change& change : batches[i].changes) {
      const std::optional<uint64_t> snapshot = AddedSnapshot(change);
      if (snapshot.has_value()) unused_snapshots_.push_back(*snapshot);
    }
  }
}

bool SessionStore::OnlyErase(const std::vector<Batch>& batches) {
  return std::all_of(batches.begin(), batches.end(), [](const Batch& batch) {
    return std::all_of(batch.changes.begin(), batch.changes.end(), Erases);
  });
}

absl::Status SessionStore::CheckRoom(int64_t bytes) const {
  const absl::StatusOr<int64_t> found = files_.FreeBytes(folder_);
  if (!found.ok()) return AsDisksError(found.status());  // it is gone
  const int64_t free_bytes = *found;
  if (free_bytes - bytes >= options_.reserved_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      folder_, ": ", free_bytes, " bytes are free on its disk, of which ", options_.reserved_bytes,
      " are kept for deletions", bytes == 0 ? "" : absl::StrCat("; expected ", bytes, " more")));
}

// An error is everybody's; `results` has those of single batches.
absl::Status SessionStore::CommitOnce(const std::vector<Batch>& batches,
                                      std::vector<absl::Status>& results, StagedCommit& group) {
  catalogue_->ClearFailure();
  const auto all = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_) -> absl::Status {
    MNEME_RETURN_IF_ERROR(catalogue_->Begin());
    for (size_t i = 0; i < batches.size(); ++i) {
      MNEME_RETURN_IF_ERROR(catalogue_->BeginPart());
      ChangeApplier applier(*catalogue_, *this, group, options_.limits, /*sequence=*/NewId());
      for (const Change& change : batches[i].changes) {
        results[i].Update(applier.Apply(change));
        if (!results[i].ok()) break;
      }
      MNEME_RETURN_IF_ERROR(catalogue_->failure());
      if (results[i].ok()) {
        MNEME_RETURN_IF_ERROR(catalogue_->EndPart());
        group.Add(applier.TakeStaged());
      } else {
        MNEME_RETURN_IF_ERROR(catalogue_->TakePartBack());
      }
    }
    MNEME_RETURN_IF_ERROR(ForgetOldRequests(group));
    const RealClock clock;
    const absl::Duration begin = clock.Monotonic();
    MNEME_RETURN_IF_ERROR(catalogue_->Commit());
    const absl::Duration took = clock.Monotonic() - begin;
    absl::MutexLock lock(&mu_);
    const uint64_t micros = static_cast<uint64_t>(absl::ToInt64Microseconds(took));
    const size_t bucket = micros <= 1 ? 0 : static_cast<size_t>(std::bit_width(micros - 1));
    ++stats_.commit_time[std::min(bucket, stats_.commit_time.size() - 1)];
    stats_.commit_time_sum += took;
    return absl::OkStatus();
  };
  const absl::Status committed = all();
  if (!committed.ok()) {
    LOG(ERROR) << "the store could not commit: " << committed.message();
    catalogue_->Rollback();
    // A full disk has written nothing that counts. Whatever else failed: nobody knows.
    broken_ = !absl::IsResourceExhausted(committed) || catalogue_->sync_failed();
  }
  for (const absl::Status& result : results) (void)Noted(result);
  return committed;
}

absl::Status SessionStore::ForgetOldRequests(StagedCommit& group) {
  const int64_t kept = static_cast<int64_t>(requests_.size() + group.requests_added.size()) -
                       static_cast<int64_t>(group.requests_dropped.size());
  int64_t surplus = kept - options_.requests_kept;
  for (const RowKey& row : requests_) {
    if (surplus <= 0) break;
    if (std::find(group.requests_dropped.begin(), group.requests_dropped.end(), row) !=
        group.requests_dropped.end()) {
      continue;
    }
    MNEME_RETURN_IF_ERROR(catalogue_->Delete(row));
    MNEME_RETURN_IF_ERROR(catalogue_->Delete({RowKind::kRequestSession, 0, row.key}));
    group.requests_dropped.push_back(row);
    group.erase_later = true;
    --surplus;
  }
  return absl::OkStatus();
}

void SessionStore::Publish(StagedCommit& group) {
  for (const uint64_t snapshot : group.snapshots_added) ++snapshot_users_[snapshot];
  for (const uint64_t snapshot : group.snapshots_dropped) --snapshot_users_[snapshot];
  // Additions first: a batch may drop what another has added. A row that was dropped and added
  // again is in the list twice, and the older place goes.
  {
    absl::MutexLock lock(&mu_);
    for (const RowKey& row : group.requests_added) request_keys_.insert(row.key);
  }
  for (RowKey& row : group.requests_added) requests_.push_back(std::move(row));
  for (const RowKey& row : group.requests_dropped) {
    const auto found = std::find(requests_.begin(), requests_.end(), row);
    if (found != requests_.end()) requests_.erase(found);
  }
  absl::MutexLock lock(&mu_);
  if (request_keys_.size() > 2 * requests_.size() + 1024) NoteRequestKeys();
  for (auto& [id, session] : group.sessions) SetSession(id, std::move(session));
  for (auto& [model, name] : group.models) models_[model] = std::move(name);
  for (const TakeOverModel& change : group.taken_over) TakeOver(change);
  stats_.damaged += static_cast<int64_t>(group.snapshots_damaged.size());
  stats_.turns += group.turns;
  stats_.log_bytes += group.log_bytes;
}

void SessionStore::NoteRequestKeys() {
  request_keys_.clear();
  for (const RowKey& row : requests_) request_keys_.insert(row.key);
}

void SessionStore::SetSession(uint64_t id, std::optional<SessionRecord> session) {
  const auto count = [this](const SessionRecord& one, int sign) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    OwnerUsage& usage = usage_[one.owner];
    for (OwnerUsage* each : {&usage, &usage_of_all_}) {
      each->sessions += sign;
      each->bytes += sign * one.stored_bytes();
      each->checkpoints += sign * one.checkpoints;
    }
    if (usage.sessions == 0) usage_.erase(one.owner);
    (one.status == SessionStatus::kLost ? lost_ : live_[one.model]) += sign;
  };
  const auto before = sessions_.find(id);
  if (before != sessions_.end()) {
    count(*before->second, -1);
    const auto named = by_name_.find(before->second.get());
    if (named != by_name_.end() && (*named)->id == id) by_name_.erase(named);
    sessions_.erase(before);
  }
  if (!session.has_value()) return;
  count(*session, 1);
  auto owned = std::make_unique<const SessionRecord>(*std::move(session));
  by_name_.erase(owned.get());  // of one that the same commit deleted, and that is not gone yet
  by_name_.insert(owned.get());
  sessions_[id] = std::move(owned);
}

void SessionStore::TakeOver(const TakeOverModel& change) {
  successors_[change.before] = change.model;
  std::vector<SessionRecord> taken;
  for (const auto& [id, session] : sessions_) {
    if (session->model == change.before) taken.push_back(*session);
  }
  for (SessionRecord& session : taken) {
    const uint64_t id = session.id;
    session.model = change.model;
    SetSession(id, std::move(session));
  }
}

// What no row names any more goes, after its row and for good.
absl::Status SessionStore::Clean(const StagedCommit& group) {
  const auto clean = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_) -> absl::Status {
    for (const uint64_t snapshot : group.snapshots_damaged) {
      const std::string path = SnapshotPath(snapshot);
      const absl::Status moved = files_.Rename(path, path + ".damaged");
      if (!moved.ok() && !absl::IsNotFound(moved)) return moved;
      snapshot_users_.erase(snapshot);
      slabs_changed_ = true;
    }
    unused_snapshots_.insert(unused_snapshots_.end(), group.snapshots_dropped.begin(),
                             group.snapshots_dropped.end());
    while (!unused_snapshots_.empty()) {  // what fails is tried again with the next commit
      const uint64_t snapshot = unused_snapshots_.back();
      const auto users = snapshot_users_.find(snapshot);
      if (users == snapshot_users_.end() || users->second <= 0) {
        const absl::Status removed = files_.Remove(SnapshotPath(snapshot));
        if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
        snapshot_users_.erase(snapshot);
        slabs_changed_ = true;
      }
      unused_snapshots_.pop_back();
    }
    if (!slabs_changed_) return absl::OkStatus();
    MNEME_RETURN_IF_ERROR(files_.SyncDirectory(absl::StrCat(folder_, "/slabs")));
    slabs_changed_ = false;
    return absl::OkStatus();
  };
  const absl::Status cleaned = clean();
  if (!cleaned.ok()) LOG(ERROR) << "snapshots left behind: " << cleaned.message();
  if (group.erase_later) {
    erase_due_ = std::min(erase_due_, RealClock().Monotonic() + options_.erase_within);
  }
  if (!group.erase) return cleaned;
  MNEME_RETURN_IF_ERROR(Erase());
  return cleaned;
}

absl::Status SessionStore::Mend() {
  if (!broken_) return absl::OkStatus();
  Catalogue::Damage damage;
  MNEME_RETURN_IF_ERROR(catalogue_->WriteAnew(damage));
  broken_ = false;
  erase_due_ = absl::InfiniteDuration();
  {
    absl::MutexLock lock(&mu_);
    ++stats_.written_anew;
  }
  if (damage.rows.empty() && !damaged_) return absl::OkStatus();
  StoreReport report;
  MNEME_RETURN_IF_ERROR(LoadSessions(damage, /*opening=*/false, report));
  damaged_ = false;
  Note(report, /*opening=*/false);
  report.Log();
  return absl::OkStatus();
}

}  // namespace mneme
