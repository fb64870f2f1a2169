// Everything that the store asks of a disk, behind an interface, so that tests can play failing
// disks and power losses.
//
// What is promised, as POSIX and journaling file systems do it:
//   - bytes written are durable once File::Sync has returned OK, and their file's size with them;
//   - a new file, a rename or a removal is durable once SyncDirectory of its folder has returned
//   OK;
//   - a rename replaces its target whole or not at all;
//   - until then, any part of it may survive a power loss: a write in any subset of its bytes.
// After a Sync that failed nobody knows what is on the disk, and a later Sync of the same file that
// succeeds says nothing of what the failed one should have covered: Linux forgets which pages it
// could not write. Such a file has to be written anew.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace mneme {

// Errors of all methods name the operation and the path, and have errno's text and code: NOT_FOUND,
// ALREADY_EXISTS, PERMISSION_DENIED, RESOURCE_EXHAUSTED (no space, no quota), FAILED_PRECONDITION
// (a read-only file system), UNAVAILABLE (EIO).

// Where a sync is called: tests tell these places apart, and leave out one of them.
struct SyncSite {
  const char* file;
  int line;

  static constexpr SyncSite Here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

// An open file; closed by its destructor. Used by one thread at a time.
class File {
 public:
  virtual ~File() = default;

  // Fills `bytes` from `offset`; returns fewer than asked for only where the file ends.
  virtual absl::StatusOr<size_t> Read(int64_t offset, std::span<std::byte> bytes) = 0;
  // All of `bytes`, or an error: then any part of them may have been written.
  virtual absl::Status Write(int64_t offset, std::span<const std::byte> bytes) = 0;
  virtual absl::StatusOr<int64_t> Size() = 0;
  virtual absl::Status Truncate(int64_t size) = 0;
  virtual absl::Status Sync(SyncSite site = SyncSite::Here()) = 0;
  // UNAVAILABLE where its path leads to another file, or to none: who writes on writes to nothing
  // that anybody will find.
  virtual absl::Status CheckPlace() = 0;
};

enum class OpenMode {
  kRead,
  kReadWrite,
  kCreate,        // must not exist yet
  kOpenOrCreate,  // kReadWrite, and made where it does not exist
};

// Holds a lock until it is destroyed, or until the process ends in whatever way.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

// May be called from any thread. Paths are absolute or relative to the working directory.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Files are for their owner alone (0600) and closed where programs are started.
  virtual absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) = 0;
  // For its owner alone (0700); OK where it exists.
  virtual absl::Status CreateDirectory(const std::string& path) = 0;
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Remove(const std::string& path) = 0;
  virtual absl::Status SyncDirectory(const std::string& path, SyncSite site = SyncSite::Here()) = 0;
  // Names in a folder, sorted, without "." and "..".
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& path) = 0;
  virtual absl::StatusOr<bool> Exists(const std::string& path) = 0;
  // Of a file, which is made where there is none, and of the folder that it is in, so that the lock
  // holds though the file is removed. FAILED_PRECONDITION, naming the process that holds it, where
  // another process has the lock.
  virtual absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path) = 0;
  // Of the file system that a path is on, for this user.
  virtual absl::StatusOr<int64_t> FreeBytes(const std::string& path) = 0;
};

class PosixFileSystem final : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override;
  absl::Status CreateDirectory(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status SyncDirectory(const std::string& path, SyncSite site) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override;
  absl::StatusOr<bool> Exists(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path) override;
  absl::StatusOr<int64_t> FreeBytes(const std::string& path) override;
};

}  // namespace mneme
