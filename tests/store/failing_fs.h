// A file system whose n-th operation of a kind fails, once or from then on.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "store/file_system.h"

namespace mneme {

class FailingFileSystem final : public FileSystem {
 public:
  enum class Kind { kOpen, kRead, kWrite, kTruncate, kSync, kSyncDirectory, kRename, kRemove };

  explicit FailingFileSystem(FileSystem& files) : files_(files) {}

  // Operation `number` of a kind, from 0 and counted from now, returns `error`; so do `more` of
  // this kind behind it. A write that fails has written the first half of its bytes.
  void Fail(Kind kind, int64_t number, absl::Status error, int64_t more = 0);
  // Operations of a kind since the last Fail.
  int64_t count(Kind kind) const;
  void set_free_bytes(int64_t bytes) { free_bytes_ = bytes; }
  // The folder is not there any more; files that are open still are.
  void set_gone(bool gone) { gone_ = gone; }

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override;
  absl::Status CreateDirectory(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status SyncDirectory(const std::string& path, SyncSite site) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override;
  absl::StatusOr<bool> Exists(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path) override;
  absl::StatusOr<int64_t> FreeBytes(const std::string& path) override;

 private:
  class OpenFile;
  absl::Status Count(Kind kind);

  FileSystem& files_;
  std::atomic<int64_t> free_bytes_ = int64_t{1} << 40;
  std::atomic<bool> gone_ = false;
  mutable absl::Mutex mu_;
  std::map<Kind, int64_t> counts_ ABSL_GUARDED_BY(mu_);
  Kind kind_ ABSL_GUARDED_BY(mu_) = Kind::kOpen;
  int64_t first_ ABSL_GUARDED_BY(mu_) = -1;
  int64_t last_ ABSL_GUARDED_BY(mu_) = -1;
  absl::Status error_ ABSL_GUARDED_BY(mu_);
};

}  // namespace mneme
