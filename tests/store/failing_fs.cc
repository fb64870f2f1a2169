#include "tests/store/failing_fs.h"

#include <span>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace mneme {

class FailingFileSystem::OpenFile final : public File {
 public:
  OpenFile(FailingFileSystem& files, std::unique_ptr<File> file)
      : files_(files), file_(std::move(file)) {}

  absl::StatusOr<size_t> Read(int64_t offset, std::span<std::byte> bytes) override {
    MNEME_RETURN_IF_ERROR(files_.Count(Kind::kRead));
    return file_->Read(offset, bytes);
  }
  absl::Status Write(int64_t offset, std::span<const std::byte> bytes) override {
    const absl::Status counted = files_.Count(Kind::kWrite);
    if (!counted.ok()) MNEME_RETURN_IF_ERROR(file_->Write(offset, bytes.first(bytes.size() / 2)));
    MNEME_RETURN_IF_ERROR(counted);
    return file_->Write(offset, bytes);
  }
  absl::StatusOr<int64_t> Size() override { return file_->Size(); }
  absl::Status Truncate(int64_t size) override {
    MNEME_RETURN_IF_ERROR(files_.Count(Kind::kTruncate));
    return file_->Truncate(size);
  }
  absl::Status Sync(SyncSite site) override {
    MNEME_RETURN_IF_ERROR(files_.Count(Kind::kSync));
    return file_->Sync(site);
  }

 private:
  FailingFileSystem& files_;
  const std::unique_ptr<File> file_;
};

void FailingFileSystem::Fail(Kind kind, int64_t number, absl::Status error, int64_t more) {
  absl::MutexLock lock(&mu_);
  counts_.clear();
  kind_ = kind;
  first_ = number;
  last_ = number + more;
  error_ = std::move(error);
}

int64_t FailingFileSystem::count(Kind kind) const {
  absl::MutexLock lock(&mu_);
  const auto found = counts_.find(kind);
  return found == counts_.end() ? 0 : found->second;
}

absl::Status FailingFileSystem::Count(Kind kind) {
  absl::MutexLock lock(&mu_);
  const int64_t number = counts_[kind]++;
  return kind == kind_ && number >= first_ && number <= last_ ? error_ : absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<File>> FailingFileSystem::Open(const std::string& path,
                                                              OpenMode mode) {
  if (gone_.load()) return absl::NotFoundError(absl::StrCat(path, ": No such file or directory"));
  MNEME_RETURN_IF_ERROR(Count(Kind::kOpen));
  MNEME_ASSIGN_OR_RETURN(std::unique_ptr<File> file, files_.Open(path, mode));
  return std::make_unique<OpenFile>(*this, std::move(file));
}

absl::Status FailingFileSystem::CreateDirectory(const std::string& path) {
  return files_.CreateDirectory(path);
}

absl::Status FailingFileSystem::Rename(const std::string& from, const std::string& to) {
  MNEME_RETURN_IF_ERROR(Count(Kind::kRename));
  return files_.Rename(from, to);
}

absl::Status FailingFileSystem::Remove(const std::string& path) {
  MNEME_RETURN_IF_ERROR(Count(Kind::kRemove));
  return files_.Remove(path);
}

absl::Status FailingFileSystem::SyncDirectory(const std::string& path, SyncSite site) {
  MNEME_RETURN_IF_ERROR(Count(Kind::kSyncDirectory));
  return files_.SyncDirectory(path, site);
}

absl::StatusOr<std::vector<std::string>> FailingFileSystem::List(const std::string& path) {
  return files_.List(path);
}

absl::StatusOr<bool> FailingFileSystem::Exists(const std::string& path) {
  return files_.Exists(path);
}

absl::StatusOr<std::unique_ptr<FileLock>> FailingFileSystem::Lock(const std::string& path) {
  return files_.Lock(path);
}

absl::StatusOr<int64_t> FailingFileSystem::FreeBytes(const std::string& path) {
  if (gone_.load()) return absl::NotFoundError(absl::StrCat(path, ": No such file or directory"));
  return free_bytes_.load();
}

}  // namespace mneme
