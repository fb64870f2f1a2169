#include "store/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

constexpr size_t kWrittenAtOnce = size_t{256} << 10;

absl::Status PosixError(absl::string_view operation, absl::string_view path) {
  const int error = errno;
  const std::string what = absl::StrCat(operation, " ", path);
  const absl::Status status = absl::ErrnoToStatus(error, what);
  return error == EIO ? absl::UnavailableError(status.message()) : status;
}

// Repeats a system call that a signal interrupted.
template <typename Call>
auto Retried(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

class PosixFile final : public File {
 public:
  PosixFile(std::string path, Descriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  absl::StatusOr<size_t> Read(int64_t offset, std::span<std::byte> bytes) override {
    size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t count = Retried([&] {
        return pread(fd_.get(), bytes.data() + done, bytes.size() - done,
                     offset + static_cast<int64_t>(done));
      });
      if (count < 0) return PosixError("read", path_);
      if (count == 0) break;
      done += static_cast<size_t>(count);
    }
    return done;
  }

  absl::Status Write(int64_t offset, std::span<const std::byte> bytes) override {
    size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t count = Retried([&] {
        return pwrite(fd_.get(), bytes.data() + done, bytes.size() - done,
                      offset + static_cast<int64_t>(done));
      });
      if (count < 0) return PosixError("write", path_);
      done += static_cast<size_t>(count);
    }
    // The disk writes the first pieces of a large file while the next ones are made; only a sync
    // tells whether it has.
    if (bytes.size() >= kWrittenAtOnce) {
      (void)sync_file_range(fd_.get(), offset, static_cast<off_t>(bytes.size()),
                            SYNC_FILE_RANGE_WRITE);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> Size() override {
    struct stat facts;
    if (fstat(fd_.get(), &facts) != 0) return PosixError("size of", path_);
    return facts.st_size;
  }

  absl::Status Truncate(int64_t size) override {
    if (Retried([&] { return ftruncate(fd_.get(), size); }) != 0) {
      return PosixError("truncate", path_);
    }
    return absl::OkStatus();
  }

  absl::Status CheckPlace() override {
    struct stat here, there;
    if (fstat(fd_.get(), &here) != 0) return PosixError("look at", path_);
    const bool is_there = lstat(path_.c_str(), &there) == 0;
    if (is_there && here.st_dev == there.st_dev && here.st_ino == there.st_ino) {
      return absl::OkStatus();
    }
    return absl::UnavailableError(absl::StrCat(path_, is_there
                                                          ? ": another file has taken its place"
                                                          : ": is gone: it, or its folder, "
                                                            "was removed or unmounted"));
  }

  // Not repeated where it fails: see the header.
  absl::Status Sync(SyncSite) override {
    if (fdatasync(fd_.get()) != 0) return PosixError("fdatasync", path_);
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  const Descriptor fd_;
};

class PosixLock final : public FileLock {
 public:
  PosixLock(Descriptor file, Descriptor folder)
      : file_(std::move(file)), folder_(std::move(folder)) {}

 private:
  const Descriptor file_, folder_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<File>> PosixFileSystem::Open(const std::string& path,
                                                            OpenMode mode) {
  int flags = O_CLOEXEC | O_NOFOLLOW;
  switch (mode) {
    case OpenMode::kRead:
      flags |= O_RDONLY;
      break;
    case OpenMode::kReadWrite:
      flags |= O_RDWR;
      break;
    case OpenMode::kCreate:
      flags |= O_RDWR | O_CREAT | O_EXCL;
      break;
    case OpenMode::kOpenOrCreate:
      flags |= O_RDWR | O_CREAT;
      break;
  }
  Descriptor fd(Retried([&] { return open(path.c_str(), flags, 0600); }));
  if (fd.get() < 0) return PosixError(mode == OpenMode::kCreate ? "create" : "open", path);
  return std::make_unique<PosixFile>(path, std::move(fd));
}

absl::Status PosixFileSystem::CreateDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) == 0) return absl::OkStatus();
  const absl::Status error = PosixError("create folder", path);
  struct stat facts;
  const bool is_folder = stat(path.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode);
  return is_folder ? absl::OkStatus() : error;
}

absl::Status PosixFileSystem::Rename(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) != 0) {
    return PosixError("rename", absl::StrCat(from, " to ", to));
  }
  return absl::OkStatus();
}

absl::Status PosixFileSystem::Remove(const std::string& path) {
  if (unlink(path.c_str()) != 0) return PosixError("remove", path);
  return absl::OkStatus();
}

absl::Status PosixFileSystem::SyncDirectory(const std::string& path, SyncSite) {
  const Descriptor fd(
      Retried([&] { return open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (fd.get() < 0) return PosixError("open folder", path);
  if (fsync(fd.get()) != 0) return PosixError("fsync of folder", path);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> PosixFileSystem::List(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(path.c_str()), closedir);
  if (folder == nullptr) return PosixError("list", path);
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = readdir(folder.get())) {
    const absl::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
    errno = 0;
  }
  if (errno != 0) return PosixError("list", path);
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<bool> PosixFileSystem::Exists(const std::string& path) {
  struct stat facts;
  if (lstat(path.c_str(), &facts) == 0) return true;
  if (errno == ENOENT) return false;
  return PosixError("look for", path);
}

absl::StatusOr<std::unique_ptr<FileLock>> PosixFileSystem::Lock(const std::string& path) {
  Descriptor fd(
      Retried([&] { return open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600); }));
  if (fd.get() < 0) return PosixError("open lock", path);
  const std::string parent = std::filesystem::path(path).parent_path().string();
  Descriptor folder(Retried([&] {
    return open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  }));
  if (folder.get() < 0) return PosixError("open folder", parent);
  // Some file systems lock no folders, and there the file has to do.
  const bool is_taken = flock(folder.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  if (is_taken || flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return PosixError("lock", path);
    char text[32];
    const ssize_t count = pread(fd.get(), text, sizeof text, 0);
    const absl::string_view holder =
        absl::StripAsciiWhitespace({text, static_cast<size_t>(std::max<ssize_t>(count, 0))});
    return absl::FailedPreconditionError(
        absl::StrCat("lock ", path, ": held by process ", holder.empty() ? "?" : holder));
  }
  const std::string pid = absl::StrCat(getpid(), "\n");
  if (ftruncate(fd.get(), 0) != 0 || pwrite(fd.get(), pid.data(), pid.size(), 0) < 0) {
    return PosixError("write lock", path);
  }
  return std::make_unique<PosixLock>(std::move(fd), std::move(folder));
}

absl::StatusOr<int64_t> PosixFileSystem::FreeBytes(const std::string& path) {
  struct statvfs facts;
  if (statvfs(path.c_str(), &facts) != 0) return PosixError("free space of", path);
  return static_cast<int64_t>(facts.f_bavail) * static_cast<int64_t>(facts.f_frsize);
}

}  // namespace mneme
