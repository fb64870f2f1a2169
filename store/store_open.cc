// From files to sessions, at the start and after damage.
#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "store/session_label.h"
#include "store/session_store.h"
#include "store/slab_file.h"

namespace mneme {
namespace {

std::string Named(const SessionRecord& session) {
  return SessionLabel(session.name, session.owner, session.id);
}

std::string StoodBefore(const SessionRecord& session) {
  const int64_t before = session.doubted_at.value_or(0);
  if (before <= session.position()) {
    return "what came later, or what was recorded of its idempotency keys, is lost, if there was "
           "any";
  }
  return absl::StrCat("it stood at position ", before, " or farther");
}

}  // namespace

void StoreReport::Log() const {
  for (const absl::Status& one : damage) LOG(ERROR) << "session store: " << one.message();
  for (const std::string& path : set_aside) LOG(ERROR) << "session store: set aside " << path;
  for (const SessionRecord& session : fallen_back) {
    LOG(ERROR) << "session store: " << Named(session) << " fell back to position "
               << session.position() << "; " << StoodBefore(session);
  }
  for (const SessionRecord& session : in_doubt) {
    LOG(ERROR) << "session store: " << Named(session) << " may have fallen back to position "
               << session.position() << "; " << StoodBefore(session);
  }
  for (const SessionRecord& session : lost) {
    LOG(ERROR) << "session store: " << Named(session) << " is lost, at position "
               << session.position();
  }
}

absl::Status SessionStore::Start(StoreReport& report) {
  absl::MutexLock disk(&disk_mu_);
  MNEME_RETURN_IF_ERROR(files_.CreateDirectory(folder_));
  const std::string parent = std::filesystem::path(folder_).parent_path().string();
  MNEME_RETURN_IF_ERROR(files_.SyncDirectory(parent.empty() ? "." : parent));
  MNEME_ASSIGN_OR_RETURN(lock_, files_.Lock(folder_ + "/lock"));
  MNEME_RETURN_IF_ERROR(files_.CreateDirectory(folder_ + "/slabs"));
  Catalogue::Damage damage;
  MNEME_ASSIGN_OR_RETURN(const std::vector<std::string> slabs, files_.List(folder_ + "/slabs"));
  const bool has_snapshots = std::any_of(slabs.begin(), slabs.end(), [](const std::string& name) {
    return SnapshotOfFile(name) != 0;
  });
  MNEME_ASSIGN_OR_RETURN(catalogue_, Catalogue::Open(files_, folder_, has_snapshots,
                                                     options_.most_checked_bytes, damage));
  absl::Status loaded = LoadSessions(damage, /*opening=*/true, report);
  if (absl::IsDataLoss(loaded)) {  // of rows: what can be read of them is enough to go on
    MNEME_RETURN_IF_ERROR(catalogue_->WriteAnew(damage));
    loaded = LoadSessions(damage, /*opening=*/true, report);
  }
  MNEME_RETURN_IF_ERROR(loaded);
  MNEME_RETURN_IF_ERROR(SweepSlabs(report));
  // What was deleted before a crash is erased now.
  return catalogue_->Checkpoint(/*erase=*/true);
}

absl::Status SessionStore::LoadSessions(const Catalogue::Damage& damage, bool opening,
                                        StoreReport& report) {
  std::vector<SessionRecord> sessions;
  MNEME_RETURN_IF_ERROR(catalogue_->ScanAll(
      RowKind::kSession, [&](const RowKey& row, RecordReader values) -> absl::StatusOr<bool> {
        MNEME_ASSIGN_OR_RETURN(SessionRecord session, DecodeSession(values, row.Name()));
        session.id = row.session;
        sessions.push_back(std::move(session));
        return true;
      }));
  absl::flat_hash_map<uint64_t, uint64_t> successors;
  MNEME_RETURN_IF_ERROR(catalogue_->ScanAll(
      RowKind::kTakenOver, [&](const RowKey& row, RecordReader values) -> absl::StatusOr<bool> {
        successors[NumberOf(row.key)] = values.Fixed64();
        return true;
      }));
  MNEME_RETURN_IF_ERROR(NoteSessions(damage, opening, sessions, report));
  MNEME_RETURN_IF_ERROR(LoadRequests());
  absl::flat_hash_map<uint64_t, int> users;
  uint64_t greatest = 0;
  MNEME_RETURN_IF_ERROR(catalogue_->ScanAll(
      RowKind::kSnapshot, [&](const RowKey& row, const RecordReader&) -> absl::StatusOr<bool> {
        ++users[NumberOf(row.key)];
        greatest = std::max(greatest, NumberOf(row.key));
        return true;
      }));
  snapshot_users_ = std::move(users);
  absl::flat_hash_map<uint64_t, int64_t> checkpoints;  // by session
  MNEME_RETURN_IF_ERROR(catalogue_->ScanAll(
      RowKind::kCheckpoint, [&](const RowKey& row, const RecordReader&) -> absl::StatusOr<bool> {
        ++checkpoints[row.session];
        return true;
      }));
  MNEME_ASSIGN_OR_RETURN(const std::optional<std::string> doubt,
                         catalogue_->Get({.kind = RowKind::kDoubt}));
  absl::MutexLock lock(&mu_);
  names_in_doubt_ = doubt.has_value();
  successors_ = std::move(successors);
  for (SessionRecord& session : sessions) {
    const auto successor = successors_.find(session.model);
    if (successor != successors_.end()) session.model = successor->second;
    session.checkpoints = checkpoints[session.id];
    const auto before = sessions_.find(session.id);
    if (before == sessions_.end()) continue;
    session.rewinds = before->second->rewinds;
    session.went_back = before->second->went_back;
  }
  by_name_.clear();
  sessions_.clear();
  usage_.clear();
  usage_of_all_ = {};
  live_.clear();
  lost_ = 0;
  sessions_.reserve(sessions.size());
  for (SessionRecord& session : sessions) {
    greatest = std::max(greatest, session.id);
    const uint64_t id = session.id;
    SetSession(id, std::move(session));
  }
  next_id_ = std::max(next_id_, greatest + 1);
  return absl::OkStatus();
}

// Makes durable what becomes of sessions after damage, and of those that were not durable.
absl::Status SessionStore::NoteSessions(const Catalogue::Damage& damage, bool opening,
                                        std::vector<SessionRecord>& sessions, StoreReport& report) {
  const RowKey damage_row = {.kind = RowKind::kDamage};
  MNEME_ASSIGN_OR_RETURN(const std::optional<std::string> noted, catalogue_->Get(damage_row));
  report = {.set_aside = damage.set_aside, .damage = damage.rows};
  std::vector<SessionRecord*> changed;
  const auto note = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_) -> absl::Status {
    if (noted.has_value() || damaged_) {
      if (report.damage.empty()) {
        report.damage.push_back(absl::DataLossError(
            absl::StrCat(folder_, ": was damaged, and has not been gone through since")));
      }
      RecordReader values(noted.has_value() ? absl::string_view(*noted) : "");
      Losses losses;
      losses.commits = values.Varint() != 0;
      losses.requests = values.Varint() != 0;
      MNEME_RETURN_IF_ERROR(Recover(sessions, losses, opening, report));
      for (SessionRecord& session : sessions) changed.push_back(&session);
    }
    for (SessionRecord& session : sessions) {
      if (!opening || session.durability == Durability::kTurn || session.parked) continue;
      if (session.status == SessionStatus::kLost) continue;
      session.status = SessionStatus::kLost;
      report.lost.push_back(session);
      changed.push_back(&session);
    }
    for (const SessionRecord* session : changed) {
      const RowKey row = {.kind = RowKind::kSession, .session = session->id};
      MNEME_RETURN_IF_ERROR(catalogue_->Put(row, Encode(*session)));
    }
    return noted.has_value() ? catalogue_->Delete(damage_row) : absl::OkStatus();
  };
  MNEME_RETURN_IF_ERROR(catalogue_->Begin());
  const absl::Status written = note();
  if (!written.ok()) catalogue_->Rollback();
  MNEME_RETURN_IF_ERROR(written);
  return catalogue_->Commit();
}

absl::Status SessionStore::LoadRequests() {
  std::vector<std::pair<uint64_t, RowKey>> found;
  MNEME_RETURN_IF_ERROR(catalogue_->ScanAll(
      RowKind::kRequestSession,
      [&](const RowKey& row, RecordReader values) -> absl::StatusOr<bool> {
        const uint64_t session = values.Varint();
        const uint64_t sequence = values.Varint();
        found.emplace_back(sequence, RowKey{RowKind::kRequest, session, row.key});
        return true;
      }));
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  requests_.clear();
  for (auto& [sequence, row] : found) requests_.push_back(std::move(row));
  absl::MutexLock lock(&mu_);
  NoteRequestKeys();
  if (!found.empty()) next_id_ = std::max(next_id_, found.back().first + 1);
  return absl::OkStatus();
}

absl::Status SessionStore::SweepSlabs(StoreReport& report) {
  const std::string folder = folder_ + "/slabs";
  MNEME_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.List(folder));
  uint64_t greatest = 0;
  for (const std::string& name : names) {
    const uint64_t id = SnapshotOfFile(name);
    greatest = std::max(greatest, id);
    const bool unfinished = absl::EndsWith(name, ".slab.tmp");
    if (!unfinished && (id == 0 || snapshot_users_.contains(id))) continue;
    MNEME_RETURN_IF_ERROR(files_.Remove(absl::StrCat(folder, "/", name)));
    ++report.orphans_removed;
  }
  // Whatever this removed, and the process before it, too.
  MNEME_RETURN_IF_ERROR(files_.SyncDirectory(folder));
  absl::MutexLock lock(&mu_);
  next_id_ = std::max(next_id_, greatest + 1);
  return absl::OkStatus();
}

}  // namespace mneme
