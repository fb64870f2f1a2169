#include "store/catalogue.h"

#include <algorithm>
#include <limits>
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

constexpr int64_t kApplicationId = 0x4D6E656D;  // "Mnem"
constexpr int64_t kFormatVersion = 1;
constexpr size_t kMaxRowBytes = size_t{64} << 20;
constexpr absl::string_view kPrefix = "catalogue.";
constexpr absl::string_view kSuffix = ".db";
constexpr char kImageSuffix[] = ".new-mended";  // what begins as ".new" is nobody's
// Kinds whose rows would be missed by nobody. Turns are numbered.
constexpr RowKind kCountedKinds[] = {RowKind::kSession, RowKind::kSnapshot, RowKind::kCheckpoint,
                                     RowKind::kRequest, RowKind::kRequestSession};
constexpr absl::string_view kColumns = "SELECT kind, session, key, record FROM rows ";

absl::string_view KindName(RowKind kind) {
  switch (kind) {
    case RowKind::kSession:
      return "session";
    case RowKind::kTurn:
      return "turn";
    case RowKind::kSnapshot:
      return "snapshot";
    case RowKind::kCheckpoint:
      return "checkpoint";
    case RowKind::kRequest:
      return "request";
    case RowKind::kRequestSession:
      return "session of request";
    case RowKind::kDoubt:
      return "doubt";
    case RowKind::kCommits:
      return "number of commits";
    case RowKind::kModel:
      return "name of model";
    case RowKind::kDamage:
      return "damage";
    case RowKind::kTakenOver:
      return "successor of model";
  }
  return "row of unknown kind";
}

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

RowKey KeyOf(const Statement& rows) {
  return {.kind = static_cast<RowKind>(rows.Int(0)),
          .session = static_cast<uint64_t>(rows.Int(1)),
          .key = std::string(rows.Bytes(2))};
}

Statement& BindKey(Statement& statement, const RowKey& row) {
  return statement.Bind(1, static_cast<int64_t>(row.kind))
      .Bind(2, static_cast<int64_t>(row.session))
      .BindBlob(3, row.key);
}

bool IsCounted(RowKind kind) {
  return std::find(std::begin(kCountedKinds), std::end(kCountedKinds), kind) !=
         std::end(kCountedKinds);
}

// The row of kCommits.
RecordWriter EncodeCommits(int64_t commits, const std::map<RowKind, int64_t>& counts) {
  RecordWriter record;
  record.Varint(static_cast<uint64_t>(commits)).Varint(counts.size());
  for (const auto& [kind, count] : counts) {
    record.Varint(static_cast<uint64_t>(kind)).Signed(count);
  }
  return record;
}

// Nothing where there are none.
std::optional<std::map<RowKind, int64_t>> DecodeCounts(RecordReader& values) {
  if (values.empty()) return std::nullopt;
  std::map<RowKind, int64_t> counts;
  for (uint64_t left = values.Count(2); left > 0; --left) {
    const auto kind = static_cast<RowKind>(values.Varint());
    counts[kind] = values.Signed();
  }
  return counts;
}

absl::StatusOr<int64_t> ReadNumber(Database& database, absl::string_view sql) {
  MNEME_ASSIGN_OR_RETURN(Statement statement, database.Prepare(sql));
  MNEME_ASSIGN_OR_RETURN(const bool found, statement.Step());
  return found ? statement.Int(0) : 0;
}

absl::StatusOr<int64_t> ReadPragma(Database& database, absl::string_view name) {
  MNEME_ASSIGN_OR_RETURN(Statement pragma, database.Prepare(absl::StrCat("PRAGMA ", name)));
  MNEME_ASSIGN_OR_RETURN(const bool found, pragma.Step());
  return found ? pragma.Int(0) : 0;
}

}  // namespace

std::string RowKey::Name() const {
  const absl::string_view what = KindName(kind);
  const bool number = kind == RowKind::kTurn || kind == RowKind::kSnapshot;
  return absl::StrCat(what, " ", number ? absl::StrCat(NumberOf(key)) : key, " of session ",
                      session);
}

std::string NumberKey(uint64_t number) {
  std::string key(8, '\0');
  for (size_t i = 0; i < 8; ++i) key[i] = static_cast<char>(number >> (56 - 8 * i));
  return key;
}

uint64_t NumberOf(absl::string_view key) {
  uint64_t number = 0;
  for (const char byte : key) number = number << 8 | static_cast<unsigned char>(byte);
  return number;
}

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
  MNEME_RETURN_IF_ERROR(catalogue->Sweep());
  if (catalogue->generation_ == 0) {
    absl::Status known;
    if (has_snapshots) {
      known = absl::DataLossError(absl::StrCat(
          catalogue->folder_, ": there are snapshots of sessions, and no catalogue of them"));
      damage.sessions_unreadable = damage.commits_lost = true;
    }
    MNEME_RETURN_IF_ERROR(catalogue->WriteAnew(damage, known));
    return catalogue;
  }
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

absl::StatusOr<Catalogue::RowCounts> Catalogue::CountRows(Database& database) {
  RowCounts counts;
  for (const RowKind kind : kCountedKinds) {
    MNEME_ASSIGN_OR_RETURN(
        counts[kind], ReadNumber(database, absl::StrCat("SELECT count(*) FROM rows WHERE kind = ",
                                                        static_cast<int>(kind))));
  }
  return counts;
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

absl::Status Catalogue::RemoveImage() {
  for (const absl::string_view suffix : {"", "-wal"}) {
    const absl::Status gone = files_.Remove(absl::StrCat(Path(generation_), kImageSuffix, suffix));
    if (!gone.ok() && !absl::IsNotFound(gone)) return gone;
  }
  return absl::OkStatus();
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
  const absl::Status counted = Put(
      {.kind = RowKind::kCommits},
      counts_.has_value() ? EncodeCommits(commits_ + 1, *counts_)
                          : std::move(RecordWriter().Varint(static_cast<uint64_t>(commits_ + 1))));
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

// Finds the generation that counts, and removes what a crash has left of others.
absl::Status Catalogue::Sweep() {
  MNEME_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.List(folder_));
  absl::string_view rest;
  for (const std::string& name : names) {
    const int64_t generation = GenerationOf(name, rest);
    if (generation > 0 && rest.empty()) generation_ = std::max(generation_, generation);
  }
  // A name that is seen may not be durable yet, and must be before its forerunner goes.
  MNEME_RETURN_IF_ERROR(files_.SyncDirectory(folder_));
  bool removed = false;
  for (const std::string& name : names) {
    const int64_t generation = GenerationOf(name, rest);
    if (generation == 0 || rest == ".damaged" || rest == "-wal.damaged") continue;
    if (generation != generation_ || absl::StartsWith(rest, ".new")) {
      MNEME_RETURN_IF_ERROR(files_.Remove(absl::StrCat(folder_, "/", name)));
      removed = true;
    }
  }
  return removed ? files_.SyncDirectory(folder_) : absl::OkStatus();
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
  MNEME_ASSIGN_OR_RETURN(const std::optional<std::string> commits, Get(row));
  const std::string record = commits.value_or("");
  RecordReader values(record);
  commits_ = static_cast<int64_t>(values.Varint());
  counts_ = DecodeCounts(values);
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
      Statement rows, database_->Prepare(absl::StrCat(
                          kColumns, "WHERE kind = ? AND session = ? AND key >= ? ORDER BY key")));
  BindKey(rows, {kind, session, std::string(from)});
  return ScanRows(rows, visit);
}

absl::Status Catalogue::ScanAll(RowKind kind, const Visit& visit) {
  MNEME_ASSIGN_OR_RETURN(Statement rows, database_->Prepare(absl::StrCat(
                                             kColumns, "WHERE kind = ? ORDER BY session, key")));
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

absl::Status Catalogue::WriteAnew(Damage& damage, const absl::Status& known) {
  const int64_t last = generation_;
  const size_t damaged_rows = damage.rows.size();
  if (!known.ok()) damage.rows.push_back(known);
  absl::Status opened;
  // Where the disk failed as the last one was opened, it may be whole all the same.
  if (last > 0 && (database_ == nullptr || statements_ == nullptr)) opened = OpenGeneration();
  if (!opened.ok() && !absl::IsDataLoss(opened)) return opened;
  if (!opened.ok()) {
    damage.rows.push_back(
        absl::DataLossError(absl::StrCat(Path(last), ": nothing of it is readable")));
    damage.sessions_unreadable = true;
  }
  MNEME_RETURN_IF_ERROR(WriteGeneration(last + 1, damage));
  statements_.reset();
  database_.reset();
  MNEME_RETURN_IF_ERROR(RemoveImage());
  generation_ = last + 1;
  MNEME_RETURN_IF_ERROR(OpenGeneration());
  if (last == 0) return absl::OkStatus();
  mark_.Write(commits_);  // of what is left
  return RemoveGeneration(last, /*set_aside=*/damage.rows.size() > damaged_rows, damage);
}

// Under its name, and durable, when this returns OK.
absl::Status Catalogue::WriteGeneration(int64_t generation, Damage& damage) {
  const std::string temporary = Path(generation) + ".new";
  for (const absl::string_view suffix : {"", "-wal", "-journal"}) {
    const absl::Status removed = files_.Remove(absl::StrCat(temporary, suffix));
    if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
  }
  MNEME_ASSIGN_OR_RETURN(std::unique_ptr<Database> next, Database::Create(files_, temporary));
  MNEME_RETURN_IF_ERROR(next->Execute(absl::StrCat(
      "PRAGMA application_id = ", kApplicationId, "; PRAGMA user_version = ", kFormatVersion,
      "; CREATE TABLE rows (kind INTEGER NOT NULL, session INTEGER NOT NULL, key BLOB NOT NULL,"
      " record BLOB NOT NULL, PRIMARY KEY (kind, session, key)) WITHOUT ROWID;")));
  MNEME_RETURN_IF_ERROR(next->Begin());
  if (statements_ != nullptr) {
    bool whole = true;
    MNEME_RETURN_IF_ERROR(CopyRows(*next, "", damage, whole));
    // From the other end, as far as the damage.
    if (!whole) MNEME_RETURN_IF_ERROR(CopyRows(*next, "DESC", damage, whole));
  }
  MNEME_RETURN_IF_ERROR(NoteCounts(*next, damage));
  MNEME_RETURN_IF_ERROR(NoteDamage(*next, damage));
  MNEME_RETURN_IF_ERROR(next->Commit());
  MNEME_RETURN_IF_ERROR(Database::Finish(std::move(next)));
  MNEME_RETURN_IF_ERROR(files_.Rename(temporary, Path(generation)));
  return files_.SyncDirectory(folder_);
}

absl::Status Catalogue::NoteCounts(Database& next, Damage& damage) {
  MNEME_ASSIGN_OR_RETURN(RowCounts found, CountRows(next));
  const RowKey row = {.kind = RowKind::kCommits};
  int64_t commits = 0;
  std::optional<RowCounts> before;
  {
    MNEME_ASSIGN_OR_RETURN(
        Statement get,
        next.Prepare("SELECT record FROM rows WHERE kind = ? AND session = ? AND key = ?"));
    MNEME_ASSIGN_OR_RETURN(const bool copied, BindKey(get, row).Step());
    if (copied) {
      const absl::string_view record = get.Bytes(0);
      RecordReader values(record.substr(0, record.size() - 4));
      commits = static_cast<int64_t>(values.Varint());
      before = DecodeCounts(values);
    }
  }
  if (!damage.rows.empty()) {
    // Each request has two rows, far apart: one of them names the session of the other.
    MNEME_ASSIGN_OR_RETURN(
        const int64_t requests,
        ReadNumber(next, absl::StrCat("SELECT count(*) FROM (SELECT key FROM rows WHERE kind = ",
                                      static_cast<int>(RowKind::kRequest),
                                      " UNION SELECT key FROM rows WHERE kind = ",
                                      static_cast<int>(RowKind::kRequestSession), ")")));
    damage.requests_lost |= !before.has_value() || requests < (*before)[RowKind::kRequestSession];
    damage.sessions_unreadable |=
        before.has_value() && found[RowKind::kSession] < (*before)[RowKind::kSession];
  }
  MNEME_ASSIGN_OR_RETURN(Statement put,
                         next.Prepare("INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?)"));
  return BindKey(put, row).BindBlob(4, EncodeCommits(commits, found).Seal(row.Name())).Run();
}

absl::Status Catalogue::NoteDamage(Database& next, const Damage& damage) {
  // What is known of earlier damage stays, unless this is worse.
  const auto put = [&next](RowKind kind, bool replaces, RecordWriter values) -> absl::Status {
    const RowKey row = {.kind = kind};
    MNEME_ASSIGN_OR_RETURN(Statement insert,
                           next.Prepare(absl::StrCat("INSERT OR ", replaces ? "REPLACE" : "IGNORE",
                                                     " INTO rows VALUES (?, ?, ?, ?)")));
    return BindKey(insert, row).BindBlob(4, std::move(values).Seal(row.Name())).Run();
  };
  if (damage.sessions_unreadable) {
    MNEME_RETURN_IF_ERROR(put(RowKind::kDoubt, /*replaces=*/true, RecordWriter()));
  }
  if (damage.rows.empty()) return absl::OkStatus();
  return put(
      RowKind::kDamage, damage.commits_lost || damage.requests_lost,
      std::move(
          RecordWriter().Varint(damage.commits_lost ? 1 : 0).Varint(damage.requests_lost ? 1 : 0)));
}

absl::Status Catalogue::CopyRows(Database& to, absl::string_view order, Damage& damage,
                                 bool& whole) {
  MNEME_ASSIGN_OR_RETURN(Statement put,
                         to.Prepare("INSERT OR IGNORE INTO rows VALUES (?, ?, ?, ?)"));
  absl::StatusOr<Statement> rows = database_->Prepare(
      absl::StrCat(kColumns, "ORDER BY kind ", order, ", session ", order, ", key ", order));
  RowKind last = RowKind::kSession;
  absl::StatusOr<bool> more = rows.ok() ? absl::StatusOr<bool>(true) : rows.status();
  while (more.ok()) {
    more = rows->Step();
    if (!more.ok() || !*more) break;
    const RowKey row = KeyOf(*rows);
    last = row.kind;
    const absl::StatusOr<RecordReader> values = RecordReader::Open(rows->Bytes(3), row.Name());
    if (values.ok()) {
      MNEME_RETURN_IF_ERROR(BindKey(put, row).BindBlob(4, rows->Bytes(3)).Run());
    } else if (order.empty()) {
      damage.rows.push_back(values.status());
      damage.sessions_unreadable |= row.kind == RowKind::kSession;
    }
  }
  if (more.ok()) return absl::OkStatus();
  if (!absl::IsDataLoss(more.status())) return more.status();
  if (!order.empty()) return absl::OkStatus();
  whole = false;
  damage.rows.push_back(more.status());
  damage.sessions_unreadable |= last == RowKind::kSession;
  return absl::OkStatus();
}

absl::Status Catalogue::RemoveGeneration(int64_t generation, bool set_aside, Damage& damage) {
  for (const absl::string_view suffix : {"-wal", ""}) {
    const std::string path = absl::StrCat(Path(generation), suffix);
    absl::Status gone;
    if (set_aside) {
      gone = files_.Rename(path, path + ".damaged");
      if (gone.ok()) damage.set_aside.push_back(path + ".damaged");
    } else {
      gone = files_.Remove(path);
    }
    if (!gone.ok() && !absl::IsNotFound(gone)) return gone;
  }
  return files_.SyncDirectory(folder_);
}

}  // namespace mneme
