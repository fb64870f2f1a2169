// The store's rows: an ordered map, in one table of one SQLite database, whose rows have checksums.
//
//   FOLDER/catalogue.<generation>.db      the highest counts; -wal beside it belongs to it
//   FOLDER/catalogue.<generation>.db.new  is being written, and nobody's yet
//   FOLDER/commits                        commit_mark.h
//
//   rows (kind, session, key) -> record   of record.h, named by its kind, session and key
//
// SQLite's own schema says everything about the bytes: PRAGMA application_id is "Mnem",
// user_version the version of this format. A newer one is refused and left alone. An older one is
// written anew, once, in today's format: rows are read by the rules of their version, and go to the
// next generation.
//
// Writing anew is also what follows a failed sync and a damaged database: every row that can be
// read goes to the next generation, which is durable under its name before the last one is removed
// (or set aside, as <name>.damaged, if it was damaged). So there is no moment without a whole
// database, and no WAL that could meet another's database. What a crash has left of a forerunner is
// removed only when its successor has been opened, and set aside after damage. A WAL without its
// database is set aside, and so is a successor that is no database of ours.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "store/catalogue_rows.h"
#include "store/commit_mark.h"
#include "store/database.h"
#include "store/file_system.h"
#include "store/record.h"
#include "store/wal_check.h"

namespace mneme {

// Errors as Database says; DATA_LOSS also where a row's checksum is wrong. Used by one thread at a
// time.
class Catalogue {
 public:
  // Rows and files that opening, or writing anew, could not keep.
  struct Damage {
    std::vector<std::string> set_aside;  // paths
    std::vector<absl::Status> rows;      // that were dropped
    bool sessions_unreadable = false;    // rows of kSession among those that could not be read
    bool commits_lost = false;           // the last ones, so that any row may be an older one
    // More rows of requests than those whose other row names them (kRequest, kRequestSession).
    bool requests_lost = false;
  };

  ~Catalogue();

  // Makes a new one where there is none. A damaged one is written anew as far as it can be read,
  // also behind a WAL's damage where that says for certain which page it is about (wal_check.h). So
  // is one that `has_snapshots` say must have had more, as a file of it is missing, one that has
  // fewer commits than were on the disk, and one that has other rows than its last commit counted
  // of those kinds that are. Up to `most_checked_bytes` SQLite looks at all pages, too.
  static absl::StatusOr<std::unique_ptr<Catalogue>> Open(FileSystem& files, std::string folder,
                                                         bool has_snapshots,
                                                         int64_t most_checked_bytes,
                                                         Damage& damage);

  absl::Status Begin();
  absl::Status Commit();
  void Rollback();
  // A part of a transaction that can be taken back alone.
  absl::Status BeginPart();
  absl::Status EndPart() { return database_->Execute("RELEASE part"); }
  absl::Status TakePartBack();

  // INVALID_ARGUMENT beyond 64 MiB.
  absl::Status Put(const RowKey& row, RecordWriter values);
  // Nothing where there is no such row. What is returned is without its checksum.
  absl::StatusOr<std::optional<std::string>> Get(const RowKey& row);
  absl::Status Delete(const RowKey& row);
  absl::Status DeleteAll(RowKind kind, uint64_t session);
  // Rows of one kind and session, from a key on, in order, until `visit` returns false or an error.
  // `visit` may not change rows.
  using Visit = std::function<absl::StatusOr<bool>(const RowKey& row, RecordReader values)>;
  absl::Status Scan(RowKind kind, uint64_t session, absl::string_view from, const Visit& visit);
  // Of all sessions.
  absl::Status ScanAll(RowKind kind, const Visit& visit);

  // Moves the WAL into the database where it has grown beyond `pages`; with `erase`, always, and
  // leaves no byte of deleted rows anywhere.
  absl::Status Checkpoint(bool erase, int64_t pages = 0);

  // UNAVAILABLE where the files that are written to are not those of the folder any more: they, or
  // all of it, were removed, replaced or unmounted.
  absl::Status CheckPlace() {
    return database_ == nullptr ? absl::OkStatus() : database_->CheckPlace();
  }

  // Outside a transaction; see above. After an error nothing may be promised until it has been OK.
  // `known`: damage that was found already.
  absl::Status WriteAnew(Damage& damage, const absl::Status& known = absl::OkStatus());

  // The last error of the disk's, or of the database's being damaged, since it was cleared.
  const absl::Status& failure() const { return database_->failure(); }
  void ClearFailure() { database_->ClearFailure(); }
  bool sync_failed() const { return database_->sync_failed(); }

 private:
  static constexpr int64_t kApplicationId = 0x4D6E656D;  // "Mnem"
  static constexpr int64_t kFormatVersion = 1;
  static constexpr char kImageSuffix[] = ".new-mended";  // what begins as ".new" is nobody's

  Catalogue(FileSystem& files, std::string folder);
  std::string Path(int64_t generation) const;
  absl::Status Sweep(Damage& damage);
  absl::Status PassOver(Damage& damage);
  absl::Status RemoveForerunners(Damage& damage);
  absl::StatusOr<bool> HasSessions();
  absl::Status OpenGeneration();
  absl::Status RenewWal();
  absl::Status CheckCommits();
  absl::StatusOr<bool> OpenMended(const WalReading& wal);
  absl::Status RemoveImage();
  // Whether SQLite finds its pages and the order of its rows in order: what damage may hide rows
  // with. OK of a database that is larger.
  absl::Status CheckStructure(int64_t most_bytes);
  absl::Status WriteGeneration(int64_t generation, Damage& damage);
  absl::Status CheckCounts();
  // Compares what was copied with what the last commit counted, and counts anew.
  absl::Status NoteCounts(Database& next, Damage& damage);
  static absl::Status NoteDamage(Database& next, const Damage& damage);
  void Count(RowKind kind, int64_t more);
  absl::Status CopyRows(Database& to, absl::string_view order, Damage& damage, bool& whole);
  absl::Status Prepare();
  absl::Status RemoveGeneration(int64_t generation, bool set_aside, Damage& damage);
  absl::Status ScanRows(Statement& rows, const Visit& visit);

  FileSystem& files_;
  const std::string folder_;
  int64_t generation_ = 0;         // 0: none yet
  std::set<int64_t> generations_;  // of which there are databases, while it is opened
  CommitMark mark_;
  int64_t commits_ = 0;   // the row of kCommits
  bool changed_ = false;  // since Begin
  // Of the row of kCommits, and what the transaction changed since. Nothing: nobody counted.
  std::optional<RowCounts> counts_, counts_before_, counts_before_part_;
  std::unique_ptr<Database> database_;
  struct Statements;
  std::unique_ptr<Statements> statements_;  // after database_, whose they are
};

}  // namespace mneme
