#include "store/sqlite_vfs.h"

#include <sqlite3.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace mneme {
namespace {

// Behind the sqlite3_file of each open file.
struct OpenFile {
  std::string path;
  std::unique_ptr<File> file;
  bool is_wal = false;
  bool is_database = false;
  bool entry_unsynced = false;  // the folder does not know it for certain
  bool remove_at_close = false;
};

struct SqliteFile {
  sqlite3_file base;  // first, as SQLite knows nothing else of it
  OpenFile* open;
};

// Of a page of a table or an index, the bytes between its list of rows and the rows themselves mean
// nothing, but SQLite leaves there what has moved to another page, and secure_delete does not find
// that copy when the row is deleted. The SQLite file format, 1.6, says what is where. A page of
// another kind begins with the number of a page, whose first byte would be that of a kind's only
// behind 128 GiB: from half of that on nothing is cleared.
constexpr int64_t kMostClearedBytes = int64_t{64} << 30;

void ClearGap(std::span<std::byte> page, int64_t offset) {
  const auto byte = [&](size_t at) { return std::to_integer<size_t>(page[at]); };
  const auto pair = [&](size_t at) { return byte(at) << 8 | byte(at + 1); };
  const size_t header = offset == 0 ? 100 : 0;  // of the file, in its first page
  if (page.size() < header + 12 || offset >= kMostClearedBytes) return;
  const size_t kind = byte(header);
  const bool is_leaf = kind == 10 || kind == 13;
  if (!is_leaf && kind != 2 && kind != 5) return;
  const size_t begin = header + (is_leaf ? 8 : 12) + 2 * pair(header + 3);
  const size_t end = pair(header + 5) == 0 ? size_t{65536} : pair(header + 5);
  if (begin < end && end <= page.size()) {
    std::fill(page.begin() + static_cast<ptrdiff_t>(begin),
              page.begin() + static_cast<ptrdiff_t>(end), std::byte{0});
  }
}

std::string ParentOf(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

}  // namespace

struct SqliteVfs::Impl {
  explicit Impl(FileSystem& file_system) : files(file_system) {
    static std::atomic<int> made = 0;
    name = absl::StrCat("mneme-", made++);
    sqlite3_vfs* const standard = sqlite3_vfs_find(nullptr);
    CHECK(standard != nullptr) << "SQLite was built without a VFS";
    vfs.iVersion = 1;
    vfs.szOsFile = sizeof(SqliteFile);
    vfs.mxPathname = 4096;
    vfs.zName = name.c_str();
    vfs.pAppData = this;
    vfs.xOpen = Open;
    vfs.xDelete = Delete;
    vfs.xAccess = Access;
    vfs.xFullPathname = FullPathname;
    vfs.xRandomness = standard->xRandomness;
    vfs.xSleep = standard->xSleep;
    vfs.xCurrentTime = standard->xCurrentTime;
    vfs.xGetLastError = [](sqlite3_vfs*, int, char*) { return 0; };
    methods.iVersion = 1;
    methods.xClose = Close;
    methods.xRead = Read;
    methods.xWrite = Write;
    methods.xTruncate = Truncate;
    methods.xSync = Sync;
    methods.xFileSize = FileSize;
    methods.xLock = [](sqlite3_file*, int) { return SQLITE_OK; };
    methods.xUnlock = [](sqlite3_file*, int) { return SQLITE_OK; };
    methods.xCheckReservedLock = [](sqlite3_file*, int* held) { return *held = 0, SQLITE_OK; };
    methods.xFileControl = FileControl;
    methods.xSectorSize = [](sqlite3_file*) { return 4096; };
    methods.xDeviceCharacteristics = [](sqlite3_file*) { return SQLITE_IOCAP_POWERSAFE_OVERWRITE; };
    CHECK(sqlite3_vfs_register(&vfs, /*makeDflt=*/0) == SQLITE_OK);
  }
  ~Impl() { sqlite3_vfs_unregister(&vfs); }

  // Keeps the error, and translates it.
  int Fail(const absl::Status& error, int code) {
    last_error = error;
    return absl::IsResourceExhausted(error) ? SQLITE_FULL : code;
  }

  static Impl& Of(sqlite3_vfs* vfs) { return *static_cast<Impl*>(vfs->pAppData); }
  static OpenFile& Of(sqlite3_file* file) { return *reinterpret_cast<SqliteFile*>(file)->open; }
  // sqlite3_file has no room for its VFS, but its methods are the VFS's own.
  static Impl& Owner(sqlite3_file* file) {
    return *const_cast<Impl*>(reinterpret_cast<const Methods*>(file->pMethods)->owner);
  }

  static int Open(sqlite3_vfs* vfs, const char* path, sqlite3_file* file, int flags, int* out) {
    Impl& impl = Of(vfs);
    file->pMethods = nullptr;
    if (path == nullptr) return SQLITE_CANTOPEN;  // temporary files stay in memory
    auto open = std::make_unique<OpenFile>();
    open->path = path;
    open->is_wal = (flags & SQLITE_OPEN_WAL) != 0;
    open->is_database = (flags & SQLITE_OPEN_MAIN_DB) != 0;
    open->remove_at_close = (flags & SQLITE_OPEN_DELETEONCLOSE) != 0;
    OpenMode mode = (flags & SQLITE_OPEN_READONLY) != 0 ? OpenMode::kRead : OpenMode::kReadWrite;
    if ((flags & SQLITE_OPEN_CREATE) != 0) {
      const absl::StatusOr<bool> exists = impl.files.Exists(open->path);
      if (!exists.ok()) return impl.Fail(exists.status(), SQLITE_CANTOPEN);
      open->entry_unsynced = !*exists;
      if (!*exists) mode = OpenMode::kCreate;
    }
    absl::StatusOr<std::unique_ptr<File>> opened = impl.files.Open(open->path, mode);
    if (!opened.ok()) return impl.Fail(opened.status(), SQLITE_CANTOPEN);
    open->file = *std::move(opened);
    if (out != nullptr) *out = flags;
    reinterpret_cast<SqliteFile*>(file)->open = open.release();
    file->pMethods = &impl.methods;
    return SQLITE_OK;
  }

  static int Close(sqlite3_file* file) {
    const std::unique_ptr<OpenFile> open(&Of(file));
    if (!open->remove_at_close) return SQLITE_OK;
    const absl::Status removed = Owner(file).files.Remove(open->path);
    return removed.ok() ? SQLITE_OK : Owner(file).Fail(removed, SQLITE_IOERR_DELETE);
  }

  static int Read(sqlite3_file* file, void* bytes, int count, sqlite3_int64 offset) {
    const size_t wanted = static_cast<size_t>(count);
    const absl::StatusOr<size_t> got =
        Of(file).file->Read(offset, {static_cast<std::byte*>(bytes), wanted});
    if (!got.ok()) return Owner(file).Fail(got.status(), SQLITE_IOERR_READ);
    if (*got == wanted) return SQLITE_OK;
    std::memset(static_cast<char*>(bytes) + *got, 0, wanted - *got);  // as SQLite demands
    return SQLITE_IOERR_SHORT_READ;
  }

  static int Write(sqlite3_file* file, const void* bytes, int count, sqlite3_int64 offset) {
    std::span<const std::byte> written_bytes = {static_cast<const std::byte*>(bytes),
                                                static_cast<size_t>(count)};
    std::vector<std::byte> page;
    if (Of(file).is_database && count == kDatabasePageBytes && offset % kDatabasePageBytes == 0) {
      page.assign(written_bytes.begin(), written_bytes.end());
      ClearGap(page, offset);
      written_bytes = page;
    }
    const absl::Status written = Of(file).file->Write(offset, written_bytes);
    return written.ok() ? SQLITE_OK : Owner(file).Fail(written, SQLITE_IOERR_WRITE);
  }

  static int Truncate(sqlite3_file* file, sqlite3_int64 size) {
    const absl::Status truncated = Of(file).file->Truncate(size);
    return truncated.ok() ? SQLITE_OK : Owner(file).Fail(truncated, SQLITE_IOERR_TRUNCATE);
  }

  static int Sync(sqlite3_file* file, int) {
    OpenFile& open = Of(file);
    absl::Status synced;
    if (open.is_wal) {  // two calls, as they cover different things: a commit, and a checkpoint
      synced = open.file->Sync();
    } else {
      synced = open.file->Sync();
    }
    if (synced.ok() && open.entry_unsynced) {
      synced = Owner(file).files.SyncDirectory(ParentOf(open.path));
    }
    if (synced.ok()) {
      open.entry_unsynced = false;
      return SQLITE_OK;
    }
    Owner(file).sync_failed = true;
    Owner(file).Fail(synced, SQLITE_OK);
    return SQLITE_IOERR_FSYNC;
  }

  static int FileSize(sqlite3_file* file, sqlite3_int64* size) {
    const absl::StatusOr<int64_t> found = Of(file).file->Size();
    if (!found.ok()) return Owner(file).Fail(found.status(), SQLITE_IOERR_FSTAT);
    *size = *found;
    return SQLITE_OK;
  }

  static int FileControl(sqlite3_file* file, int operation, void* out) {
    if (operation != SQLITE_FCNTL_HAS_MOVED) return SQLITE_NOTFOUND;
    const absl::Status place = Of(file).file->CheckPlace();
    if (!place.ok()) Owner(file).Fail(place, SQLITE_OK);
    *static_cast<int*>(out) = place.ok() ? 0 : 1;
    return SQLITE_OK;
  }

  static int Delete(sqlite3_vfs* vfs, const char* path, int sync_folder) {
    Impl& impl = Of(vfs);
    absl::Status removed = impl.files.Remove(path);
    if (absl::IsNotFound(removed)) return SQLITE_IOERR_DELETE_NOENT;
    if (removed.ok() && sync_folder != 0) removed = impl.files.SyncDirectory(ParentOf(path));
    return removed.ok() ? SQLITE_OK : impl.Fail(removed, SQLITE_IOERR_DELETE);
  }

  static int Access(sqlite3_vfs* vfs, const char* path, int, int* answer) {
    const absl::StatusOr<bool> exists = Of(vfs).files.Exists(path);
    if (!exists.ok()) return Of(vfs).Fail(exists.status(), SQLITE_IOERR_ACCESS);
    *answer = *exists ? 1 : 0;
    return SQLITE_OK;
  }

  // Paths are taken as they are.
  static int FullPathname(sqlite3_vfs*, const char* path, int size, char* out) {
    if (std::strlen(path) >= static_cast<size_t>(size)) return SQLITE_CANTOPEN;
    std::strcpy(out, path);
    return SQLITE_OK;
  }

  struct Methods : sqlite3_io_methods {
    Impl* owner = nullptr;
  };

  FileSystem& files;
  std::string name;
  sqlite3_vfs vfs = {};
  Methods methods = {{}, this};
  absl::Status last_error;
  bool sync_failed = false;
};

SqliteVfs::SqliteVfs(FileSystem& files) : impl_(std::make_unique<Impl>(files)) {}
SqliteVfs::~SqliteVfs() = default;
const std::string& SqliteVfs::name() const { return impl_->name; }
const absl::Status& SqliteVfs::last_error() const { return impl_->last_error; }
bool SqliteVfs::sync_failed() const { return impl_->sync_failed; }

}  // namespace mneme
