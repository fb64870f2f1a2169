// A disk that loses its power: a file system in memory that knows what has been synced.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "store/file_system.h"

namespace mneme {

// Keeps in order what no sync has covered: of each file its writes and truncations, of each folder
// its new files, renames and removals. A crash image has all that was synced, and of the rest any
// subset; writes survive whole, in some of their sectors of 512 bytes, or to some byte. What a file
// was grown by and not written reads as zeros, or as rubbish.
class PowerLossFileSystem final : public FileSystem {
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

  // What may be on the disk if the power fails now; a function of the seed.
  std::unique_ptr<PowerLossFileSystem> CrashImage(uint64_t seed) const;
  // What another process sees when this one is killed now: nothing is lost, and nothing more
  // durable.
  std::unique_ptr<PowerLossFileSystem> KillImage() const;
  // Bytes by path.
  std::map<std::string, std::string> AllFiles() const;

  // Called before every operation that changes something, without locks held. Not for images.
  std::function<void()> before_change;
  // Places that sync, as "file.cc:line", in the order in which they first did.
  std::vector<std::string> sync_sites() const;
  // A sync of a file fails, after `others` that do not, as on Linux: all that it should have
  // covered stays readable, but half of it never becomes durable, whatever is synced later.
  void FailSyncAfter(int others) { syncs_until_failure_ = others; }
  // That place's syncs do nothing, and say OK.
  void IgnoreSite(std::string site) { ignored_site_ = std::move(site); }

 private:
  struct Operation {
    int64_t offset = 0;                // or the size, of a truncation
    std::optional<std::string> bytes;  // nothing: a truncation
  };
  struct Inode {
    std::string bytes;
    std::string durable;
    std::vector<Operation> pending;  // from `durable` to `bytes`
  };
  using Entries = std::map<std::string, std::shared_ptr<Inode>>;
  struct EntryChange {
    std::string path;
    std::shared_ptr<Inode> inode;  // null: the entry goes
    std::string renamed_from;      // whose entry goes with it
  };
  class OpenFile;

  // Whether the sync counts.
  bool Synced(SyncSite site) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void Change(Entries& entries, const EntryChange& change);
  static void Perform(std::string& bytes, const Operation& operation);
  void Announce() const {
    if (before_change) before_change();
  }

  std::string ignored_site_;
  std::atomic<int> syncs_until_failure_ = -1;
  mutable absl::Mutex mu_;
  std::vector<std::string> sites_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> folders_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> pending_folders_ ABSL_GUARDED_BY(mu_);  // of these
  Entries entries_ ABSL_GUARDED_BY(mu_);
  Entries durable_ ABSL_GUARDED_BY(mu_);
  std::vector<EntryChange> pending_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> locks_ ABSL_GUARDED_BY(mu_);
};

}  // namespace mneme
