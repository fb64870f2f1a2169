#include "store/database.h"

#include <sqlite3.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace mneme {

Statement::Statement(Statement&& other) noexcept
    : database_(other.database_), statement_(std::exchange(other.statement_, nullptr)) {}

Statement::~Statement() { sqlite3_finalize(statement_); }

Statement& Statement::Bind(int index, int64_t value) {
  CHECK(sqlite3_bind_int64(statement_, index, value) == SQLITE_OK);
  return *this;
}

Statement& Statement::Bind(int index, absl::string_view text) {
  CHECK(sqlite3_bind_text64(statement_, index, text.data() == nullptr ? "" : text.data(),
                            text.size(), SQLITE_TRANSIENT, SQLITE_UTF8) == SQLITE_OK);
  return *this;
}

Statement& Statement::BindBlob(int index, absl::string_view bytes) {
  CHECK(sqlite3_bind_blob64(statement_, index, bytes.data() == nullptr ? "" : bytes.data(),
                            bytes.size(), SQLITE_TRANSIENT) == SQLITE_OK);
  return *this;
}

absl::StatusOr<bool> Statement::Step() {
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return database_->Error(code);
}

int64_t Statement::Int(int column) const { return sqlite3_column_int64(statement_, column); }

absl::string_view Statement::Bytes(int column) const {
  const void* bytes = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  return {static_cast<const char*>(bytes), static_cast<size_t>(size)};
}

void Statement::Reset() {
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
}

absl::Status Statement::Run() {
  absl::StatusOr<bool> more = true;
  while (more.ok() && *more) more = Step();
  Reset();
  return more.status();
}

int64_t Database::changed_rows() const { return sqlite3_changes64(connection_); }

absl::StatusOr<std::unique_ptr<Database>> Database::Open(FileSystem& files,
                                                         const std::string& path) {
  std::unique_ptr<Database> database(new Database(files, path));
  // The file's header says WAL. Checkpoints are asked for, not taken while somebody waits for a
  // commit.
  MNEME_RETURN_IF_ERROR(database->Connect(
      SQLITE_OPEN_READWRITE,
      "PRAGMA locking_mode=EXCLUSIVE; PRAGMA synchronous=FULL; PRAGMA secure_delete=ON;"
      "PRAGMA temp_store=MEMORY; PRAGMA wal_autocheckpoint=0; PRAGMA journal_mode=WAL;"));
  return database;
}

absl::StatusOr<std::unique_ptr<Database>> Database::Create(FileSystem& files,
                                                           const std::string& path) {
  std::unique_ptr<Database> database(new Database(files, path));
  // No journal on the disk: a file that is not finished is nobody's.
  MNEME_RETURN_IF_ERROR(database->Connect(
      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE,
      "PRAGMA locking_mode=EXCLUSIVE; PRAGMA synchronous=OFF; PRAGMA temp_store=MEMORY;"
      "PRAGMA journal_mode=MEMORY; PRAGMA page_size=4096;"));
  return database;
}

absl::Status Database::Connect(int flags, const std::string& pragmas) {
  const int code = sqlite3_open_v2(path_.c_str(), &connection_, flags | SQLITE_OPEN_NOMUTEX,
                                   vfs_.name().c_str());
  if (code != SQLITE_OK) return Error(code);
  sqlite3_extended_result_codes(connection_, 1);
  sqlite3_db_config(connection_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
  sqlite3_db_config(connection_, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_wal_hook(
      connection_,
      [](void* self, sqlite3*, const char*, int pages) {
        static_cast<Database*>(self)->wal_pages_ = pages;
        return SQLITE_OK;
      },
      this);
  return Execute(pragmas);
}

Database::~Database() {
  const int code = sqlite3_close(connection_);
  CHECK(code != SQLITE_BUSY) << path_ << ": closed while statements of it live";
}

absl::StatusOr<Statement> Database::Prepare(absl::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v3(connection_, sql.data(), static_cast<int>(sql.size()),
                                      SQLITE_PREPARE_PERSISTENT, &statement, /*pzTail=*/nullptr);
  if (code != SQLITE_OK) return Error(code);
  return Statement(*this, statement);
}

absl::Status Database::Execute(const std::string& sql) {
  const int code = sqlite3_exec(connection_, sql.c_str(), nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : Error(code);
}

absl::Status Database::Commit() {
  const absl::Status committed = Execute("COMMIT");
  if (!committed.ok()) Rollback();
  return committed;
}

void Database::Rollback() {
  if (sqlite3_get_autocommit(connection_) == 0) {
    sqlite3_exec(connection_, "ROLLBACK", nullptr, nullptr, nullptr);
  }
}

absl::Status Database::CheckPlace() {
  for (const int which : {SQLITE_FCNTL_FILE_POINTER, SQLITE_FCNTL_JOURNAL_POINTER}) {
    sqlite3_file* file = nullptr;
    const int found = sqlite3_file_control(connection_, "main", which, &file);
    if (found != SQLITE_OK || file == nullptr || file->pMethods == nullptr) continue;
    int moved = 0;
    const int asked = file->pMethods->xFileControl(file, SQLITE_FCNTL_HAS_MOVED, &moved);
    if (asked == SQLITE_OK && moved != 0) return vfs_.last_error();
  }
  return absl::OkStatus();
}

absl::Status Database::Checkpoint(bool erase) {
  const int mode = erase ? SQLITE_CHECKPOINT_TRUNCATE : SQLITE_CHECKPOINT_PASSIVE;
  const int code = sqlite3_wal_checkpoint_v2(connection_, nullptr, mode, nullptr, nullptr);
  if (code != SQLITE_OK) return Error(code);
  wal_pages_ = 0;
  if (!erase) return absl::OkStatus();
  // Pages in memory have what was cleared on the disk, and would be written as they are.
  sqlite3_db_release_memory(connection_);
  // SQLite cuts the WAL, and leaves it to the system when the disk learns of it.
  sqlite3_file* wal = nullptr;
  const int found = sqlite3_file_control(connection_, "main", SQLITE_FCNTL_JOURNAL_POINTER, &wal);
  if (found != SQLITE_OK || wal == nullptr || wal->pMethods == nullptr) return absl::OkStatus();
  const int synced = wal->pMethods->xSync(wal, SQLITE_SYNC_NORMAL);
  return synced == SQLITE_OK ? absl::OkStatus() : Error(synced);
}

absl::Status Database::Finish(std::unique_ptr<Database> database) {
  FileSystem& files = database->files_;
  const std::string path = database->path_;
  // Marks the file, and leaves it without a WAL.
  MNEME_RETURN_IF_ERROR(database->Execute("PRAGMA journal_mode=WAL;"));
  sqlite3_db_config(database->connection_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, nullptr);
  database.reset();
  MNEME_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.Open(path, OpenMode::kReadWrite));
  return file->Sync();
}

absl::Status Database::Error(int code) {
  std::string message = absl::StrCat(path_, ": ", sqlite3_errstr(code));
  if (connection_ != nullptr) absl::StrAppend(&message, " (", sqlite3_errmsg(connection_), ")");
  const int primary = code & 0xFF;
  const bool disk = primary == SQLITE_IOERR || primary == SQLITE_FULL || primary == SQLITE_CANTOPEN;
  if (disk && !vfs_.last_error().ok()) {
    absl::StrAppend(&message, ": ", vfs_.last_error().message());
  }
  switch (primary) {
    case SQLITE_FULL:
      return failure_ = absl::ResourceExhaustedError(message);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return failure_ = absl::DataLossError(message);
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
      return failure_ = absl::UnavailableError(message);
    case SQLITE_READONLY:
      return failure_ = absl::PermissionDeniedError(message);
    case SQLITE_CONSTRAINT:
      return absl::AlreadyExistsError(message);
    default:
      return failure_ = absl::InternalError(message);
  }
}

}  // namespace mneme
