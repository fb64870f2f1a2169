// SQLite's way to the disk: all of it goes through a FileSystem.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "store/file_system.h"

namespace mneme {

inline constexpr int kDatabasePageBytes = 4096;

// A VFS for one connection at a time that has its database to itself: nothing is locked, as the
// store's folder is, and there is no shared memory, which SQLite's WAL does without where
// locking_mode is EXCLUSIVE.
//
// SQLite is told that writing some bytes of a sector does not harm its others (as its own VFS for
// Unix says, too), and nothing else about the disk. A new file's entry in its folder is made
// durable when the file is synced first. What a page has of rows that are not its own any more is
// cleared on its way into the database.
class SqliteVfs {
 public:
  // Registers itself under a name of its own.
  explicit SqliteVfs(FileSystem& files);
  ~SqliteVfs();
  SqliteVfs(const SqliteVfs&) = delete;
  SqliteVfs& operator=(const SqliteVfs&) = delete;

  const std::string& name() const;
  // What the FileSystem said when an operation of SQLite's failed last; OK if none has. SQLite's
  // own error has a number only.
  const absl::Status& last_error() const;
  // Whether a sync has failed: from then on nobody knows what is in the file.
  bool sync_failed() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mneme
