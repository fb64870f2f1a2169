// From what damage has left to sessions: the farthest state that each can be had in.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "store/change_applier.h"
#include "store/session_rows.h"
#include "store/session_store.h"
#include "store/slab_file.h"

namespace mneme {
namespace {

// SessionRecord::memory_seed by a session's log, where that leads back to its beginning.
std::optional<uint64_t> LoggedSeed(const std::vector<std::pair<int64_t, Turn>>& turns) {
  if (turns.empty() || turns.front().first != 0) return std::nullopt;
  for (const auto& [index, turn] : turns) {
    if (turn.begin > 0) break;
    for (const Event& event : turn.events) {
      if (const auto* seeded = std::get_if<MemorySeeded>(&event)) return seeded->seed;
    }
  }
  return std::nullopt;
}

}  // namespace

// The files that verify, by id, with what rows say of them.
struct SessionStore::SnapshotFiles {
  struct File {
    SlabHead head;
    int64_t bytes = 0;
    std::set<uint64_t> sessions;  // that have a row of it
  };
  std::map<uint64_t, File> files;

  bool HasRow(uint64_t snapshot, uint64_t session) const {
    const auto found = files.find(snapshot);
    return found != files.end() && found->second.sessions.contains(session);
  }
};

absl::Status SessionStore::SetSlabAside(const std::string& path, StoreReport& report) {
  MNEME_RETURN_IF_ERROR(files_.Rename(path, path + ".damaged"));
  report.set_aside.push_back(path + ".damaged");
  slabs_changed_ = true;
  return absl::OkStatus();
}

absl::StatusOr<SessionStore::SnapshotFiles> SessionStore::ReadSnapshotFiles(StoreReport& report) {
  SnapshotFiles found;
  std::map<uint64_t, std::set<uint64_t>> rows;  // sessions, by snapshot
  MNEME_RETURN_IF_ERROR(catalogue_->ScanAll(
      RowKind::kSnapshot, [&](const RowKey& row, const RecordReader&) -> absl::StatusOr<bool> {
        rows[NumberOf(row.key)].insert(row.session);
        return true;
      }));
  MNEME_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                         files_.List(absl::StrCat(folder_, "/slabs")));
  for (const std::string& name : names) {
    const uint64_t id = SnapshotOfFile(name);
    if (id == 0) continue;
    SnapshotFiles::File file = {.sessions = rows[id]};
    // Those that have a row are read to their ends when they are used.
    const std::string path = SnapshotPath(id);
    const absl::StatusOr<std::unique_ptr<SlabReader>> slab =
        SlabReader::Open(files_, path, file.sessions.empty() ? SlabCheck::kAll : SlabCheck::kIndex);
    absl::Status status = slab.status();
    if (slab.ok() && !(*slab)->head().Is(id)) {
      status = absl::DataLossError(
          absl::StrCat("snapshot ", path, ": is that of id ", (*slab)->head().id));
    }
    if (status.ok()) {
      file.head = (*slab)->head();
      file.bytes = (*slab)->file_bytes();
      // Ids are in order: what it goes on from was looked at before. It alone is of no use.
      if (file.head.base == 0 || found.files.contains(file.head.base)) {
        found.files[id] = std::move(file);
        continue;
      }
      status = absl::DataLossError(absl::StrCat("snapshot ", path, ": snapshot ", file.head.base,
                                                " in front of it is gone"));
    }
    if (!absl::IsDataLoss(status)) return status;
    report.damage.push_back(status);
    MNEME_RETURN_IF_ERROR(SetSlabAside(path, report));
  }
  return found;
}

absl::StatusOr<absl::flat_hash_set<uint64_t>> SessionStore::PairRequests() {
  absl::flat_hash_map<std::string, uint64_t> rows;  // sessions, by key
  MNEME_RETURN_IF_ERROR(catalogue_->ScanAll(
      RowKind::kRequest, [&](const RowKey& row, const RecordReader&) -> absl::StatusOr<bool> {
        rows[row.key] = row.session;
        return true;
      }));
  absl::flat_hash_set<uint64_t> missing;
  std::vector<std::string> alone;  // keys of rows of kRequestSession
  MNEME_RETURN_IF_ERROR(
      catalogue_->ScanAll(RowKind::kRequestSession,
                          [&](const RowKey& row, RecordReader values) -> absl::StatusOr<bool> {
                            if (rows.erase(row.key) > 0) return true;
                            missing.insert(values.Varint());
                            alone.push_back(row.key);
                            return true;
                          }));
  for (std::string& key : alone) {
    MNEME_RETURN_IF_ERROR(catalogue_->Delete({RowKind::kRequestSession, 0, std::move(key)}));
  }
  for (const auto& [key, session] : rows) {  // how old they are nobody knows
    MNEME_RETURN_IF_ERROR(catalogue_->Put({RowKind::kRequestSession, 0, key},
                                          std::move(RecordWriter().Varint(session).Varint(0))));
  }
  return missing;
}

absl::Status SessionStore::Recover(std::vector<SessionRecord>& sessions, Losses losses,
                                   bool opening, StoreReport& report) {
  MNEME_ASSIGN_OR_RETURN(SnapshotFiles files, ReadSnapshotFiles(report));
  MNEME_RETURN_IF_ERROR(AdoptSnapshots(sessions, files));
  MNEME_ASSIGN_OR_RETURN(const absl::flat_hash_set<uint64_t> without_requests, PairRequests());
  for (SessionRecord& session : sessions) {
    if (session.status == SessionStatus::kLost) continue;
    const int64_t stood = session.turns < 0 ? 0 : session.position();
    const size_t fallen_back = report.fallen_back.size();
    MNEME_RETURN_IF_ERROR(Reconcile(session, files, report));
    const bool has_fallen = report.fallen_back.size() > fallen_back;
    const bool doubted = losses.commits || losses.requests || without_requests.contains(session.id);
    if (session.status == SessionStatus::kLost || (!has_fallen && !doubted)) continue;
    session.doubted_at = std::max({session.doubted_at.value_or(0), session.position(), stood});
    if (has_fallen) {
      report.fallen_back.back() = session;
    } else {
      report.in_doubt.push_back(session);
    }
  }
  // What nobody goes on from may be of use to a catalogue that somebody has a copy of. Later, it
  // may be a snapshot whose row is on its way.
  for (const auto& [id, file] : files.files) {
    if (opening && file.sessions.empty())
      MNEME_RETURN_IF_ERROR(SetSlabAside(SnapshotPath(id), report));
  }
  return slabs_changed_ ? files_.SyncDirectory(absl::StrCat(folder_, "/slabs")) : absl::OkStatus();
}

// Snapshots whose rows are gone, or never came, and sessions of which nothing else is left.
absl::Status SessionStore::AdoptSnapshots(std::vector<SessionRecord>& sessions,
                                          SnapshotFiles& files) {
  absl::flat_hash_map<uint64_t, size_t> known;
  std::set<std::pair<std::string, std::string>> names;
  for (size_t i = 0; i < sessions.size(); ++i) {
    known[sessions[i].id] = i;
    names.emplace(sessions[i].owner, sessions[i].name);
  }
  for (const auto& [id, file] : files.files) {
    const SlabHead& head = file.head;
    if (file.sessions.contains(head.session)) continue;
    const auto before = known.find(head.session);
    if (before == known.end()) {
      if (!names.emplace(head.owner, head.name).second) continue;
      known[head.session] = sessions.size();
      SessionRecord session = {.id = head.session, .owner = head.owner, .name = head.name};
      session.model = head.identity.model;
      session.created = session.last_used = absl::FromUnixSeconds(head.created);
      session.turns = -1;  // Reconcile finds out
      sessions.push_back(std::move(session));
    } else {
      const SessionRecord& session = sessions[before->second];
      const bool is_its_own = session.owner == head.owner && session.name == head.name;
      if (session.status == SessionStatus::kLost || !is_its_own) continue;
    }
    for (uint64_t one = id; one != 0; one = files.files[one].head.base) {  // a fork's: its parent's
      SnapshotFiles::File& of = files.files[one];
      if (!of.sessions.insert(head.session).second) break;
      const SnapshotRecord snapshot = {.id = one,
                                       .position = of.head.position,
                                       .turn = of.head.turn,
                                       .bytes = of.bytes,
                                       .base = of.head.base};
      MNEME_RETURN_IF_ERROR(catalogue_->Put(SnapshotRow(head.session, one), Encode(snapshot)));
    }
  }
  return absl::OkStatus();
}

absl::Status SessionStore::DropSnapshotRow(uint64_t session, uint64_t snapshot,
                                           SnapshotFiles& files) {
  const auto found = files.files.find(snapshot);
  if (found != files.files.end()) found->second.sessions.erase(session);
  return catalogue_->Delete(SnapshotRow(session, snapshot));
}

// One that is not durable goes on from its newest snapshot, unless it is known to have stood
// farther.
absl::Status SessionStore::ReconcileParked(SessionRecord& session) {
  MNEME_ASSIGN_OR_RETURN(const std::vector<SnapshotRecord> snapshots,
                         SnapshotsOf(*catalogue_, session.id));
  session.parked = !snapshots.empty() && snapshots.back().position >= session.fed_tokens;
  if (!session.parked || snapshots.back().position == session.fed_tokens) return absl::OkStatus();
  session.fed_tokens = snapshots.back().position;
  session.pending_token.reset();
  session.facts = snapshots.back().facts;
  session.state_digest = 0;
  return absl::OkStatus();
}

// Takes a session to the last state that snapshots and turns, of which some may be missing, lead
// to.
absl::Status SessionStore::Reconcile(SessionRecord& session, SnapshotFiles& files,
                                     StoreReport& report) {
  const SessionRecord before = session;
  MNEME_ASSIGN_OR_RETURN(std::vector<SnapshotRecord> snapshots,
                         SnapshotsOf(*catalogue_, session.id));
  for (const SnapshotRecord& snapshot : snapshots) {
    if (files.HasRow(snapshot.id, session.id)) continue;
    MNEME_RETURN_IF_ERROR(DropSnapshotRow(session.id, snapshot.id, files));
  }
  std::erase_if(snapshots,
                [&](const SnapshotRecord& one) { return !files.HasRow(one.id, session.id); });
  session.snapshot_bytes = 0;
  for (const SnapshotRecord& snapshot : snapshots) session.snapshot_bytes += snapshot.bytes;
  if (session.durability == Durability::kNone) return ReconcileParked(session);

  std::vector<std::pair<int64_t, Turn>> turns;
  std::map<int64_t, int64_t> bytes;  // by turn
  MNEME_RETURN_IF_ERROR(
      catalogue_->Scan(RowKind::kTurn, session.id, "",
                       [&](const RowKey& row, RecordReader values) -> absl::StatusOr<bool> {
                         const auto index = static_cast<int64_t>(NumberOf(row.key));
                         bytes[index] = static_cast<int64_t>(values.size());
                         MNEME_ASSIGN_OR_RETURN(Turn turn, DecodeTurn(values, row.Name()));
                         turns.emplace_back(index, std::move(turn));
                         return true;
                       }));
  if (!session.memory_seed.has_value()) session.memory_seed = LoggedSeed(turns);
  // From each state that needs no turns, as far as turns follow one another.
  struct State {
    int64_t first_turn = 0;
    int64_t turns = 0;
    int64_t fed_tokens = 0;
    const Turn* last = nullptr;
    std::map<int64_t, int64_t> positions;  // tokens fed, by the turns that they took
  };
  std::optional<State> best;
  const auto follow = [&](int64_t turn, int64_t position) {
    State state = {.first_turn = turn, .turns = turn, .fed_tokens = position};
    state.positions[turn] = position;
    for (const auto& [index, next] : turns) {
      if (index != state.turns || next.begin != state.fed_tokens) continue;
      state.fed_tokens = next.end();
      state.last = &next;
      state.positions[++state.turns] = state.fed_tokens;
    }
    // The farthest; of these the one with the longest log.
    if (!best.has_value() || state.turns > best->turns) best = std::move(state);
  };
  follow(0, 0);
  for (const SnapshotRecord& snapshot : snapshots) follow(snapshot.turn, snapshot.position);
  if (best->turns == 0 && before.turns != 0 && snapshots.empty()) {
    session.status = SessionStatus::kLost;
    report.lost.push_back(session);
    return absl::OkStatus();
  }
  // Snapshots of a past that the log does not lead through any more.
  for (const SnapshotRecord& snapshot : snapshots) {
    if (snapshot.turn < best->first_turn) continue;
    const auto there = best->positions.find(snapshot.turn);
    if (there != best->positions.end() && there->second == snapshot.position) continue;
    MNEME_RETURN_IF_ERROR(DropSnapshotRow(session.id, snapshot.id, files));
    session.snapshot_bytes -= snapshot.bytes;
  }
  session.first_turn = best->first_turn;
  session.log_bytes = 0;
  for (const auto& [index, size] : bytes) {
    if (index >= best->first_turn && index < best->turns) session.log_bytes += size;
  }
  const bool stands_there = best->turns == before.turns && best->fed_tokens == before.fed_tokens;
  if (!stands_there) {
    session.turns = best->turns;
    session.fed_tokens = best->fed_tokens;
    session.pending_token = best->last == nullptr ? std::nullopt : best->last->pending_token;
    session.state_digest = best->last == nullptr ? 0 : best->last->state_digest;
    session.facts = best->last == nullptr ? "" : best->last->facts;
    for (const SnapshotRecord& snapshot : snapshots) {
      if (best->last != nullptr || !snapshot.has_facts || snapshot.turn != best->turns) continue;
      session.pending_token = snapshot.pending_token;
      session.facts = snapshot.facts;
    }
    report.fallen_back.push_back(session);
  }
  return DropAround(session);
}

// What belongs to a later state than a session is in, and turns that do not lead there.
absl::Status SessionStore::DropAround(const SessionRecord& session) {
  std::vector<RowKey> dropped;
  MNEME_RETURN_IF_ERROR(
      catalogue_->Scan(RowKind::kTurn, session.id, "",
                       [&](const RowKey& row, const RecordReader&) -> absl::StatusOr<bool> {
                         const auto turn = static_cast<int64_t>(NumberOf(row.key));
                         if (turn < session.first_turn || turn >= session.turns)
                           dropped.push_back(row);
                         return true;
                       }));
  MNEME_RETURN_IF_ERROR(catalogue_->Scan(
      RowKind::kRequest, session.id, "",
      [&](const RowKey& row, RecordReader values) -> absl::StatusOr<bool> {
        MNEME_ASSIGN_OR_RETURN(const RequestRecord request, DecodeRequest(values, row.Name()));
        if (request.position <= session.position()) return true;
        dropped.push_back(row);
        dropped.push_back({RowKind::kRequestSession, 0, row.key});
        return true;
      }));
  MNEME_ASSIGN_OR_RETURN(const std::vector<CheckpointRecord> checkpoints,
                         CheckpointsOf(*catalogue_, session.id));
  for (const CheckpointRecord& one : checkpoints) {
    if (one.position <= session.fed_tokens) continue;
    dropped.push_back({RowKind::kCheckpoint, session.id, one.name});
  }
  for (const RowKey& row : dropped) MNEME_RETURN_IF_ERROR(catalogue_->Delete(row));
  return absl::OkStatus();
}

}  // namespace mneme
