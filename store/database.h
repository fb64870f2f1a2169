// SQLite with errors as Status: connections, statements, transactions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "store/file_system.h"
#include "store/sqlite_vfs.h"

struct sqlite3;
struct sqlite3_stmt;

namespace mneme {

// Errors: RESOURCE_EXHAUSTED where the disk is full, DATA_LOSS where the file is no database or a
// damaged one (SQLITE_CORRUPT, SQLITE_NOTADB), UNAVAILABLE where the disk failed (SQLITE_IOERR; the
// transaction is rolled back), ALREADY_EXISTS where a constraint does not hold, INTERNAL otherwise.
// They have SQLite's text, and what the disk said.

class Database;

// A prepared statement, used again and again: bind, step through its rows, Reset. Used only while
// its Database lives.
class Statement {
 public:
  Statement(Statement&&) noexcept;
  ~Statement();

  // Parameters by their place in the SQL, from 1. What is bound is copied.
  Statement& Bind(int index, int64_t value);
  Statement& Bind(int index, absl::string_view text);
  Statement& BindBlob(int index, absl::string_view bytes);

  // True: there is a row, whose columns, from 0, may be read until the next call.
  absl::StatusOr<bool> Step();
  int64_t Int(int column) const;
  absl::string_view Bytes(int column) const;
  // Ready to be bound and stepped through once more.
  void Reset();
  // Steps to the end, and resets.
  absl::Status Run();

 private:
  friend class Database;
  Statement(Database& database, sqlite3_stmt* statement)
      : database_(&database), statement_(statement) {}

  Database* database_;
  sqlite3_stmt* statement_;
};

// A connection that has the database to itself: WAL, synchronous FULL, secure_delete. A transaction
// is durable when Commit has returned OK. Used by one thread at a time.
class Database {
 public:
  // An existing database; what its WAL holds is part of it.
  static absl::StatusOr<std::unique_ptr<Database>> Open(FileSystem& files, const std::string& path);
  // A new one, in one file without a WAL, that becomes durable with Finish. The file must not
  // exist.
  static absl::StatusOr<std::unique_ptr<Database>> Create(FileSystem& files,
                                                          const std::string& path);
  // Closes. Nothing is written: what the WAL holds stays there.
  ~Database();

  absl::StatusOr<Statement> Prepare(absl::string_view sql);
  // Statements without parameters, separated by semicolons.
  absl::Status Execute(const std::string& sql);

  absl::Status Begin() { return Execute("BEGIN IMMEDIATE"); }
  // After an error there is no transaction any more, and none of it can be read.
  absl::Status Commit();
  // Nothing where there is no transaction.
  void Rollback();

  // Rows that the statement which ended last has inserted, altered or deleted.
  int64_t changed_rows() const;

  // UNAVAILABLE where its files are not at their paths any more.
  absl::Status CheckPlace();

  // Moves what the WAL holds into the database. With `erase`, no byte of it is left in the WAL.
  absl::Status Checkpoint(bool erase);
  int64_t wal_pages() const { return wal_pages_; }

  // Of one that Create made: closes it, and syncs the file.
  static absl::Status Finish(std::unique_ptr<Database> database);

  // The last error of the disk's, or of the file's being damaged, since ClearFailure; OK if there
  // was none. What callers did wrong is no failure.
  const absl::Status& failure() const { return failure_; }
  void ClearFailure() { failure_ = absl::OkStatus(); }
  // Whether a sync has failed: then the file has to be written anew before anything is promised.
  bool sync_failed() const { return vfs_.sync_failed(); }

 private:
  friend class Statement;
  Database(FileSystem& files, std::string path)
      : files_(files), path_(std::move(path)), vfs_(files) {}
  absl::Status Connect(int flags, const std::string& pragmas);
  absl::Status Error(int code);

  FileSystem& files_;
  const std::string path_;
  SqliteVfs vfs_;
  sqlite3* connection_ = nullptr;
  int64_t wal_pages_ = 0;
  absl::Status failure_;
};

}  // namespace mneme
