#include "store/catalogue.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>
#include <span>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

constexpr size_t kMaxRowBytes = size_t{64} << 20;
constexpr absl::string_view kPrefix = "catalogue.";
constexpr absl::string_view kSuffix = ".db";
// Of "catalogue.<generation>.db<rest>": 0 where a name is of another form.
int64_t GenerationOf(absl::string_view name, absl::string_view& rest) {
  if (!absl::ConsumePrefix(&name, kPrefix)) return 0;
  const size_t dot = name.find('.');
  int64_t generation = 0;
  if (dot == absl::string_view::npos || !absl::SimpleAtoi(name.substr(0, dot), &generation)) {
    return 0;
  }
  rest = name.substr(dot);
  return absl::ConsumePrefix(&rest, kSuffix) ? std::max<int64_t>(generation, 0) : 0;
}

absl::StatusOr<int64_t> ReadPragma(Database& database, absl::string_view name) {
  MNEME_ASSIGN_OR_RETURN(Statement pragma, database.Prepare(absl::StrCat("PRAGMA ", name)));
  MNEME_ASSIGN_OR_RETURN(const bool found, pragma.Step());
  return found ? pragma.Int(0) : 0;
}

}  // namespace

struct Catalogue::Statements {
  Statement put;
  Statement update;
  Statement get;
  Statement remove;
};

Catalogue::Catalogue(FileSystem& files, std::string folder)
    : files_(files), folder_(std::move(folder)), mark_(files, folder_ + "/commits") {}
Catalogue::~Catalogue() = default;

std::string Catalogue::Path(int64_t generation) const {
  return absl::StrCat(folder_, "/", kPrefix, generation, kSuffix);
}

absl::StatusOr<std::unique_ptr<Catalogue>> Catalogue::Open(FileSystem& files, std::string folder,
                                                           bool has_snapshots,
                                                           int64_t most_checked_bytes,
                                                           Damage& damage) {
  std::unique_ptr<Catalogue> catalogue(new Catalogue(files, std::move(folder)));
  MNEME_RETURN_IF_ERROR(catalogue->Sweep(damage));
  if (catalogue->generation_ == 0) {
    absl::Status known;
    if (has_snapshots || !damage.rows.empty()) {
      known = absl::DataLossError(absl::StrCat(catalogue->folder_, ": there are ",
                                               has_snapshots ? "snapshots" : "commits",
                                               " of sessions, and no catalogue of them"));
      damage.sessions_unreadable = damage.commits_lost = true;
    }
    MNEME_RETURN_IF_ERROR(catalogue->WriteAnew(damage, known));
    return catalogue;
  }
  MNEME_RETURN_IF_ERROR(catalogue->PassOver(damage));
  const std::string wal_path = catalogue->Path(catalogue->generation_) + "-wal";
  MNEME_ASSIGN_OR_RETURN(const bool has_wal, files.Exists(wal_path));
  MNEME_ASSIGN_OR_RETURN(const WalReading wal, ReadWal(files, wal_path));
  absl::Status opened = catalogue->OpenGeneration();
  if (opened.ok()) {
    absl::Status whole = wal.damage;
    if (whole.ok()) whole = catalogue->CheckCommits();
    if (whole.ok()) {
      opened = catalogue->CheckStructure(most_checked_bytes);
      damage.sessions_unreadable |= absl::IsDataLoss(opened);  // which rows are hidden nobody knows
      if (opened.ok()) opened = catalogue->CheckCounts();
    }
    if (absl::IsDataLoss(whole)) {
      MNEME_ASSIGN_OR_RETURN(const bool mended, catalogue->OpenMended(wal));
      damage.commits_lost = !mended || !catalogue->CheckCommits().ok();
      damage.sessions_unreadable |= damage.commits_lost;
      whole = absl::DataLossError(absl::StrCat(
          whole.message(), damage.commits_lost ? "; the last commits are lost" : "; none is lost"));
    }
    if (!whole.ok()) opened = whole;
  }
  if (opened.ok() && !has_wal && has_snapshots) {
    MNEME_ASSIGN_OR_RETURN(const bool has_sessions, catalogue->HasSessions());
    if (!has_sessions) {
      damage.sessions_unreadable = damage.commits_lost = true;
      opened = absl::DataLossError(absl::StrCat(
          wal_path, ": is missing, and there are snapshots of sessions that no row knows"));
    }
  }
  if (absl::IsDataLoss(opened)) {
    LOG(ERROR) << "catalogue is damaged and will be written anew: " << opened.message();
    MNEME_RETURN_IF_ERROR(catalogue->WriteAnew(damage, opened));
  } else if (!opened.ok()) {
    return opened;
  }
  MNEME_RETURN_IF_ERROR(catalogue->RemoveForerunners(damage));
  return catalogue;
}

// Where its WAL has lost its end, or another one lies in its place, nothing else tells.
absl::Status Catalogue::CheckCommits() {
  const int64_t marked = mark_.Read();
  if (marked <= commits_) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(Path(generation_), ": has ", commits_, " commits, and ",
                                          marked, " were on the disk"));
}

// The database as its last commit left it, where only the WAL's damage hides that: for reading,
// until it is written anew. False: that is not to be had, and what SQLite sees stays open.
absl::StatusOr<bool> Catalogue::OpenMended(const WalReading& wal) {
  if (!wal.behind.has_value()) return false;
  statements_.reset();
  database_.reset();
  const std::string path = Path(generation_);
  const std::string image = path + kImageSuffix;
  MNEME_RETURN_IF_ERROR(WriteMended(files_, path, *wal.behind, image));
  const auto open = [&]() -> absl::Status {
    MNEME_ASSIGN_OR_RETURN(database_, Database::Open(files_, image));
    MNEME_RETURN_IF_ERROR(Prepare());
    if (wal.behind->unreadable > 0) return absl::OkStatus();  // which copying rows finds
    return CheckStructure(std::numeric_limits<int64_t>::max());
  };
  const absl::Status opened = open();
  if (opened.ok()) return true;
  statements_.reset();
  database_.reset();
  MNEME_RETURN_IF_ERROR(RemoveImage());
  if (!absl::IsDataLoss(opened)) return opened;
  LOG(ERROR) << "what is behind the damage of a WAL cannot be used: " << opened.message();
  MNEME_RETURN_IF_ERROR(OpenGeneration());
  return false;
}

absl::Status Catalogue::CheckStructure(int64_t most_bytes) {
  MNEME_ASSIGN_OR_RETURN(const int64_t pages, ReadPragma(*database_, "page_count"));
  MNEME_ASSIGN_OR_RETURN(const int64_t page_bytes, ReadPragma(*database_, "page_size"));
  if (pages * page_bytes > most_bytes) return absl::OkStatus();
  MNEME_ASSIGN_OR_RETURN(Statement check, database_->Prepare("PRAGMA integrity_check(1)"));
  MNEME_ASSIGN_OR_RETURN(const bool told, check.Step());
  if (told && check.Bytes(0) == "ok") return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(Path(generation_), ": ", told ? check.Bytes(0) : "cannot be checked"));
}

// A page whose bytes have changed may hide rows, which no checksum of theirs tells.
absl::Status Catalogue::CheckCounts() {
  MNEME_ASSIGN_OR_RETURN(RowCounts found, CountRows(*database_));
  if (!counts_.has_value()) {
    counts_ = std::move(found);
    return absl::OkStatus();
  }
  for (const auto& [kind, count] : *counts_) {
    if (!IsCounted(kind) || found[kind] == count) continue;
    return absl::DataLossError(absl::StrCat(Path(generation_), ": has ", found[kind],
                                            " rows of kind \"", KindName(kind), "\", expected ",
                                            count));
  }
  return absl::OkStatus();
}

void Catalogue::Count(RowKind kind, int64_t more) {
  if (counts_.has_value() && IsCounted(kind)) (*counts_)[kind] += more;
}

absl::Status Catalogue::Begin() {
  changed_ = false;
  counts_before_ = counts_;
  return database_->Begin();
}

void Catalogue::Rollback() {
  database_->Rollback();
  counts_ = counts_before_;
}

absl::Status Catalogue::BeginPart() {
  counts_before_part_ = counts_;
  return database_->Execute("SAVEPOINT part");
}

absl::Status Catalogue::TakePartBack() {
  counts_ = counts_before_part_;
  return database_->Execute("ROLLBACK TO part; RELEASE part");
}

absl::Status Catalogue::Commit() {
  if (!changed_) return database_->Commit();
  const absl::Status counted =
      Put({.kind = RowKind::kCommits}, EncodeCommits(commits_ + 1, counts_));
  if (!counted.ok()) Rollback();
  MNEME_RETURN_IF_ERROR(counted);
  const absl::Status committed = database_->Commit();
  if (!committed.ok()) counts_ = counts_before_;
  MNEME_RETURN_IF_ERROR(committed);
  mark_.Write(++commits_);
  return absl::OkStatus();
}

absl::StatusOr<bool> Catalogue::HasSessions() {
  bool found = false;
  MNEME_RETURN_IF_ERROR(
      ScanAll(RowKind::kSession, [&](const RowKey&, const RecordReader&) -> absl::StatusOr<bool> {
        found = true;
        return false;
      }));
  return found;
}

// Finds the generations there are, and removes what a crash has left of one that was being written.
// A WAL without its database, of which none is newer, is set aside: which commits it has nobody can
// tell without that.
absl::Status Catalogue::Sweep(Damage& damage) {
  MNEME_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.List(folder_));
  std::set<int64_t> wals;
  bool removed = false;
  // A name that is seen may not be durable yet, and must be before its forerunner goes.
  MNEME_RETURN_IF_ERROR(files_.SyncDirectory(folder_));
  for (const std::string& name : names) {
    absl::string_view rest;
    const int64_t generation = GenerationOf(name, rest);
    if (generation == 0) continue;
    if (rest.empty()) generations_.insert(generation);
    if (rest == "-wal") wals.insert(generation);
    if (absl::StartsWith(rest, ".new")) {
      MNEME_RETURN_IF_ERROR(files_.Remove(absl::StrCat(folder_, "/", name)));
      removed = true;
    }
  }
  if (removed) MNEME_RETURN_IF_ERROR(files_.SyncDirectory(folder_));
  if (!generations_.empty()) generation_ = *generations_.rbegin();
  for (const int64_t generation : wals) {
    if (generations_.contains(generation)) continue;
    if (generation < generation_) {  // of which a power loss has taken the one, and not the other
      generations_.insert(generation);
      continue;
    }
    damage.rows.push_back(absl::DataLossError(
        absl::StrCat(Path(generation), "-wal: has no database ", Path(generation))));
    MNEME_RETURN_IF_ERROR(RemoveGeneration(generation, /*set_aside=*/true, damage));
  }
  return absl::OkStatus();
}

// The highest generation counts, as it was whole before it had its name. Where it is no database of
// ours all the same, and its forerunner has not gone, that one does.
absl::Status Catalogue::PassOver(Damage& damage) {
  while (generations_.size() > 1) {
    const int64_t forerunner = *std::prev(generations_.find(generation_));
    MNEME_ASSIGN_OR_RETURN(const bool there, files_.Exists(Path(forerunner)));
    if (!there) return absl::OkStatus();
    const absl::Status opened = OpenGeneration();
    statements_.reset();
    database_.reset();
    if (!absl::IsDataLoss(opened)) return absl::OkStatus();  // what it is Open finds
    LOG(ERROR) << "session store: an earlier generation is taken: " << opened.message();
    damage.rows.push_back(opened);
    MNEME_RETURN_IF_ERROR(RemoveGeneration(generation_, /*set_aside=*/true, damage));
    generations_.erase(generation_);
    generation_ = forerunner;
  }
  return absl::OkStatus();
}

// All of a forerunner was taken over before this one had its name, so what a crash has left of it
// goes, and with it what was deleted since. It is set aside after damage, and if it has commits
// that this one lacks.
absl::Status Catalogue::RemoveForerunners(Damage& damage) {
  MNEME_ASSIGN_OR_RETURN(const std::optional<std::string> noted, Get({.kind = RowKind::kDamage}));
  for (const int64_t generation : generations_) {
    if (generation == generation_) continue;
    const std::string path = Path(generation);
    MNEME_ASSIGN_OR_RETURN(const bool there, files_.Exists(path));
    MNEME_ASSIGN_OR_RETURN(const bool wal_aside, files_.Exists(path + "-wal.damaged"));
    MNEME_ASSIGN_OR_RETURN(const bool database_aside, files_.Exists(path + ".damaged"));
    // Aside: a crash came between the two.
    bool kept = noted.has_value() || !damage.rows.empty() || wal_aside || database_aside;
    if (there && !kept) {
      Catalogue other(files_, folder_);
      other.generation_ = generation;
      kept = other.OpenGeneration().ok() && other.commits_ > commits_;
    }
    MNEME_RETURN_IF_ERROR(RemoveGeneration(generation, /*set_aside=*/kept, damage));
  }
  generations_.clear();
  return absl::OkStatus();
}

// What is read from the WAL may be in memory only, and stay so, if the process before this one
// ended between a failed sync and what it does then. Written once more, the same bytes become
// durable.
absl::Status Catalogue::RenewWal() {
  const absl::StatusOr<std::unique_ptr<File>> wal =
      files_.Open(Path(generation_) + "-wal", OpenMode::kReadWrite);
  if (absl::IsNotFound(wal.status())) return absl::OkStatus();
  MNEME_RETURN_IF_ERROR(wal.status());
  std::vector<std::byte> bytes(size_t{1} << 20);
  for (int64_t offset = 0;;) {
    MNEME_ASSIGN_OR_RETURN(const size_t count, (*wal)->Read(offset, bytes));
    if (count == 0) break;
    MNEME_RETURN_IF_ERROR((*wal)->Write(offset, std::span(bytes).first(count)));
    offset += static_cast<int64_t>(count);
  }
  return (*wal)->Sync();
}

absl::Status Catalogue::OpenGeneration() {
  const std::string path = Path(generation_);
  MNEME_RETURN_IF_ERROR(RenewWal());
  MNEME_ASSIGN_OR_RETURN(database_, Database::Open(files_, path));
  MNEME_ASSIGN_OR_RETURN(const int64_t application, ReadPragma(*database_, "application_id"));
  MNEME_ASSIGN_OR_RETURN(const int64_t version, ReadPragma(*database_, "user_version"));
  if (application != kApplicationId) {
    return absl::DataLossError(absl::StrCat(path, ": is no catalogue of sessions: application id ",
                                            application, ", expected ", kApplicationId));
  }
  if (version > kFormatVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, ": is of version ", version, ", this program reads up to ", kFormatVersion));
  }
  return Prepare();
}

absl::Status Catalogue::Prepare() {
  MNEME_ASSIGN_OR_RETURN(Statement put,
                         database_->Prepare("INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?)"));
  MNEME_ASSIGN_OR_RETURN(
      Statement update,
      database_->Prepare(
          "UPDATE rows SET record = ?4 WHERE kind = ?1 AND session = ?2 AND key = ?3"));
  MNEME_ASSIGN_OR_RETURN(
      Statement get,
      database_->Prepare("SELECT record FROM rows WHERE kind = ? AND session = ? AND key = ?"));
  MNEME_ASSIGN_OR_RETURN(
      Statement remove,
      database_->Prepare("DELETE FROM rows WHERE kind = ? AND session = ? AND key = ?"));
  statements_ = std::make_unique<Statements>(
      Statements{std::move(put), std::move(update), std::move(get), std::move(remove)});
  const RowKey row = {.kind = RowKind::kCommits};
  MNEME_ASSIGN_OR_RETURN(const std::optional<std::string> record, Get(row));
  Commits decoded = DecodeCommits(record.value_or(""));
  commits_ = decoded.commits;
  counts_ = std::move(decoded.counts);
  return absl::OkStatus();
}

absl::Status Catalogue::Put(const RowKey& row, RecordWriter values) {
  if (values.size() + row.key.size() > kMaxRowBytes) {
    return absl::InvalidArgumentError(absl::StrCat(row.Name(), ": takes ", values.size(),
                                                   " bytes, a row has room for ", kMaxRowBytes));
  }
  changed_ = true;
  const std::string record = std::move(values).Seal(row.Name());
  if (IsCounted(row.kind)) {
    MNEME_RETURN_IF_ERROR(BindKey(statements_->update, row).BindBlob(4, record).Run());
    if (database_->changed_rows() > 0) return absl::OkStatus();
    Count(row.kind, 1);
  }
  return BindKey(statements_->put, row).BindBlob(4, record).Run();
}

absl::StatusOr<std::optional<std::string>> Catalogue::Get(const RowKey& row) {
  Statement& get = BindKey(statements_->get, row);
  const absl::Cleanup reset = [&get] { get.Reset(); };
  MNEME_ASSIGN_OR_RETURN(const bool found, get.Step());
  if (!found) return std::nullopt;
  const absl::string_view record = get.Bytes(0);
  MNEME_RETURN_IF_ERROR(RecordReader::Open(record, row.Name()).status());
  return std::string(record.substr(0, record.size() - 4));
}

absl::Status Catalogue::Delete(const RowKey& row) {
  changed_ = true;
  MNEME_RETURN_IF_ERROR(BindKey(statements_->remove, row).Run());
  Count(row.kind, -database_->changed_rows());
  return absl::OkStatus();
}

absl::Status Catalogue::DeleteAll(RowKind kind, uint64_t session) {
  changed_ = true;
  MNEME_ASSIGN_OR_RETURN(Statement remove,
                         database_->Prepare("DELETE FROM rows WHERE kind = ? AND session = ?"));
  remove.Bind(1, static_cast<int64_t>(kind)).Bind(2, static_cast<int64_t>(session));
  MNEME_RETURN_IF_ERROR(remove.Run());
  Count(kind, -database_->changed_rows());
  return absl::OkStatus();
}

absl::Status Catalogue::Scan(RowKind kind, uint64_t session, absl::string_view from,
                             const Visit& visit) {
  MNEME_ASSIGN_OR_RETURN(
      Statement rows,
      database_->Prepare(
          absl::StrCat(kSelectRows, "WHERE kind = ? AND session = ? AND key >= ? ORDER BY key")));
  BindKey(rows, {kind, session, std::string(from)});
  return ScanRows(rows, visit);
}

absl::Status Catalogue::ScanAll(RowKind kind, const Visit& visit) {
  MNEME_ASSIGN_OR_RETURN(Statement rows, database_->Prepare(absl::StrCat(
                                             kSelectRows, "WHERE kind = ? ORDER BY session, key")));
  rows.Bind(1, static_cast<int64_t>(kind));
  return ScanRows(rows, visit);
}

absl::Status Catalogue::ScanRows(Statement& rows, const Visit& visit) {
  while (true) {
    MNEME_ASSIGN_OR_RETURN(const bool found, rows.Step());
    if (!found) return absl::OkStatus();
    const RowKey row = KeyOf(rows);
    MNEME_ASSIGN_OR_RETURN(const RecordReader values,
                           RecordReader::Open(rows.Bytes(3), row.Name()));
    MNEME_ASSIGN_OR_RETURN(const bool go_on, visit(row, values));
    if (!go_on) return absl::OkStatus();
  }
}

absl::Status Catalogue::Checkpoint(bool erase, int64_t pages) {
  if (!erase && database_->wal_pages() <= pages) return absl::OkStatus();
  return database_->Checkpoint(erase);
}

}  // namespace mneme
