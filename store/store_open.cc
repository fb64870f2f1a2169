// From files to sessions, at the start and after damage.
#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "store/change_applier.h"
#include "store/session_store.h"
#include "store/slab_file.h"

namespace mneme {
namespace {

// Of "<16 hex digits>.slab"; 0 where a name is of another form.
uint64_t SnapshotOf(absl::string_view name) {
  uint64_t id = 0;
  const bool is_slab = absl::ConsumeSuffix(&name, ".slab") && name.size() == 16;
  return is_slab && absl::SimpleHexAtoi(name, &id) ? id : 0;
}

}  // namespace

void StoreReport::Log() const {
  for (const absl::Status& one : damage) LOG(ERROR) << "session store: " << one.message();
  for (const std::string& path : set_aside) LOG(ERROR) << "session store: set aside " << path;
  for (const SessionRecord& session : fallen_back) {
    LOG(ERROR) << "session store: session " << session.id << " fell back to position "
               << session.position();
  }
  for (const SessionRecord& session : lost) {
    LOG(ERROR) << "session store: session " << session.id << " is lost, at position "
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
  const bool has_snapshots = std::any_of(
      slabs.begin(), slabs.end(), [](const std::string& name) { return SnapshotOf(name) != 0; });
  MNEME_ASSIGN_OR_RETURN(catalogue_, Catalogue::Open(files_, folder_, has_snapshots, damage));
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
  std::vector<SessionRecord> changed;
  if (!damage.rows.empty() || damaged_) {
    report.damage = damage.rows;
    report.set_aside = damage.set_aside;
    MNEME_RETURN_IF_ERROR(AdoptSnapshots(sessions, report));
    for (SessionRecord& session : sessions) {
      MNEME_RETURN_IF_ERROR(Reconcile(session, report));
    }
    changed = sessions;
  }
  if (opening) {
    for (SessionRecord& session : sessions) {
      if (session.durability == Durability::kTurn || session.parked) continue;
      if (session.status == SessionStatus::kLost) continue;
      session.status = SessionStatus::kLost;
      report.lost.push_back(session);
      changed.push_back(session);
    }
  }
  if (!changed.empty()) {
    MNEME_RETURN_IF_ERROR(catalogue_->Begin());
    for (const SessionRecord& session : changed) {
      const RowKey row = {.kind = RowKind::kSession, .session = session.id};
      const absl::Status put = catalogue_->Put(row, Encode(session));
      if (!put.ok()) catalogue_->Rollback();
      MNEME_RETURN_IF_ERROR(put);
    }
    MNEME_RETURN_IF_ERROR(catalogue_->Commit());
  }
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
  for (SessionRecord& session : sessions) {
    session.checkpoints = checkpoints[session.id];
    const auto before = sessions_.find(session.id);
    if (before != sessions_.end()) session.rewinds = before->second->rewinds;
  }
  by_name_.clear();
  sessions_.clear();
  usage_.clear();
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

// Sessions whose rows are gone, from their snapshots' heads.
absl::Status SessionStore::AdoptSnapshots(std::vector<SessionRecord>& sessions,
                                          StoreReport& report) {
  absl::flat_hash_map<uint64_t, size_t> known;
  absl::flat_hash_map<std::pair<std::string, std::string>, size_t> names;
  for (size_t i = 0; i < sessions.size(); ++i) {
    known[sessions[i].id] = i;
    names[{sessions[i].owner, sessions[i].name}] = i;
  }
  MNEME_ASSIGN_OR_RETURN(const std::vector<std::string> files,
                         files_.List(absl::StrCat(folder_, "/slabs")));
  struct Slab {
    SlabHead head;
    int64_t bytes = 0;
  };
  std::map<uint64_t, Slab> slabs;
  for (const std::string& name : files) {
    const uint64_t id = SnapshotOf(name);
    if (id == 0) continue;
    const absl::StatusOr<std::unique_ptr<SlabReader>> slab =
        SlabReader::Open(files_, SnapshotPath(id));
    if (slab.ok() && (*slab)->head().Is(id)) {
      slabs[id] = {(*slab)->head(), (*slab)->file_bytes()};
    } else if (slab.ok()) {
      report.damage.push_back(absl::DataLossError(
          absl::StrCat("snapshot ", SnapshotPath(id), ": is that of id ", (*slab)->head().id)));
    } else if (absl::IsDataLoss(slab.status())) {
      report.damage.push_back(slab.status());
    } else {
      return slab.status();
    }
  }
  // What is not whole without a file that is gone is of no use; that is an older one.
  std::erase_if(slabs, [&](const auto& slab) {
    const uint64_t base = slab.second.head.base;
    return base != 0 && !slabs.contains(base);
  });
  for (const auto& [id, slab] : slabs) {
    const SlabHead& head = slab.head;
    const auto before = known.find(head.session);
    const bool adopted = before != known.end() && sessions[before->second].turns < 0;
    if (before != known.end() && !adopted) {
      continue;
    }
    if (!adopted) {
      if (!names.try_emplace(std::make_pair(head.owner, head.name), sessions.size()).second)
        continue;
      known[head.session] = sessions.size();
      SessionRecord session = {.id = head.session, .owner = head.owner, .name = head.name};
      session.model = head.identity.model;
      session.created = session.last_used = absl::FromUnixSeconds(head.created);
      session.turns = -1;  // Reconcile finds out
      sessions.push_back(std::move(session));
    }
    for (uint64_t one = id; one != 0; one = slabs[one].head.base) {  // a fork's are its parent's
      const Slab& of = slabs[one];
      const SnapshotRecord snapshot = {.id = one,
                                       .position = of.head.position,
                                       .turn = of.head.turn,
                                       .bytes = of.bytes,
                                       .base = of.head.base};
      MNEME_RETURN_IF_ERROR(
          catalogue_->Put({RowKind::kSnapshot, head.session, NumberKey(one)}, Encode(snapshot)));
    }
  }
  return absl::OkStatus();
}

// Takes a session to the last state that snapshots and turns, of which some may be missing, lead
// to.
absl::Status SessionStore::Reconcile(SessionRecord& session, StoreReport& report) {
  if (session.status == SessionStatus::kLost) return absl::OkStatus();
  const SessionRecord before = session;
  MNEME_ASSIGN_OR_RETURN(const std::vector<SnapshotRecord> snapshots,
                         SnapshotsOf(*catalogue_, session.id));
  std::vector<std::pair<int64_t, Turn>> turns;
  session.log_bytes = 0;
  MNEME_RETURN_IF_ERROR(catalogue_->Scan(
      RowKind::kTurn, session.id, "",
      [&](const RowKey& row, RecordReader values) -> absl::StatusOr<bool> {
        session.log_bytes += static_cast<int64_t>(values.size());
        MNEME_ASSIGN_OR_RETURN(Turn turn, DecodeTurn(values, row.Name()));
        turns.emplace_back(static_cast<int64_t>(NumberOf(row.key)), std::move(turn));
        return true;
      }));
  session.snapshot_bytes = 0;
  for (const SnapshotRecord& snapshot : snapshots) session.snapshot_bytes += snapshot.bytes;
  if (session.durability == Durability::kNone) {
    if (session.parked && snapshots.empty()) session.parked = false;
    return absl::OkStatus();
  }
  // From each state that needs no turns, as far as turns follow one another.
  struct State {
    int64_t first_turn = 0;
    int64_t turns = 0;
    int64_t fed_tokens = 0;
    const Turn* last = nullptr;
  };
  std::optional<State> best;
  const auto follow = [&](int64_t turn, int64_t position) {
    State state = {.first_turn = turn, .turns = turn, .fed_tokens = position};
    for (const auto& [index, next] : turns) {
      if (index != state.turns || next.begin != state.fed_tokens) continue;
      state.fed_tokens = next.end();
      state.last = &next;
      ++state.turns;
    }
    // The farthest; of these the one with the longest log.
    if (!best.has_value() || state.turns > best->turns) best = state;
  };
  follow(0, 0);
  for (const SnapshotRecord& snapshot : snapshots) follow(snapshot.turn, snapshot.position);
  session.first_turn = best->first_turn;
  if (best->turns == before.turns && best->fed_tokens == before.fed_tokens) {
    return absl::OkStatus();
  }
  if (best->turns == 0 && snapshots.empty()) {
    session.first_turn = before.first_turn;
    session.status = SessionStatus::kLost;
    report.lost.push_back(session);
    return absl::OkStatus();
  }
  session.turns = best->turns;
  session.fed_tokens = best->fed_tokens;
  session.pending_token = best->last == nullptr ? std::nullopt : best->last->pending_token;
  session.state_digest = best->last == nullptr ? 0 : best->last->state_digest;
  session.facts = best->last == nullptr ? "" : best->last->facts;
  report.fallen_back.push_back(session);
  return DropBeyond(session);
}

// What belongs to a later state than a session is in.
absl::Status SessionStore::DropBeyond(const SessionRecord& session) {
  std::vector<RowKey> beyond;
  MNEME_RETURN_IF_ERROR(
      catalogue_->Scan(RowKind::kTurn, session.id, NumberKey(static_cast<uint64_t>(session.turns)),
                       [&](const RowKey& row, const RecordReader&) -> absl::StatusOr<bool> {
                         beyond.push_back(row);
                         return true;
                       }));
  MNEME_RETURN_IF_ERROR(catalogue_->Scan(
      RowKind::kRequest, session.id, "",
      [&](const RowKey& row, RecordReader values) -> absl::StatusOr<bool> {
        MNEME_ASSIGN_OR_RETURN(const RequestRecord request, DecodeRequest(values, row.Name()));
        if (request.position <= session.position()) return true;
        beyond.push_back(row);
        beyond.push_back({RowKind::kRequestSession, 0, row.key});
        return true;
      }));
  MNEME_ASSIGN_OR_RETURN(const std::vector<CheckpointRecord> checkpoints,
                         CheckpointsOf(*catalogue_, session.id));
  for (const CheckpointRecord& one : checkpoints) {
    if (one.position <= session.fed_tokens) continue;
    beyond.push_back({RowKind::kCheckpoint, session.id, one.name});
  }
  for (const RowKey& row : beyond) MNEME_RETURN_IF_ERROR(catalogue_->Delete(row));
  return absl::OkStatus();
}

absl::Status SessionStore::SweepSlabs(StoreReport& report) {
  const std::string folder = folder_ + "/slabs";
  MNEME_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.List(folder));
  uint64_t greatest = 0;
  for (const std::string& name : names) {
    const uint64_t id = SnapshotOf(name);
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
