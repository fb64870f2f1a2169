#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace mneme {
namespace {

int MadviseFlag(FileAccess access) {
  switch (access) {
    case FileAccess::kNormal:
      return MADV_NORMAL;
    case FileAccess::kWillNeed:
      return MADV_WILLNEED;
  }
  return MADV_NORMAL;
}

absl::Status ErrnoError(int error, absl::string_view action, absl::string_view path) {
  return absl::ErrnoToStatus(error, absl::StrCat("cannot ", action, " \"", path, "\""));
}

// Closes a descriptor on every way out; a mapping outlives its descriptor.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

void Madvise(const std::byte* data, int64_t size, int64_t begin, int64_t end, int flag,
             bool widen) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  begin = std::max<int64_t>(begin, 0);
  end = std::min(end, size);
  begin = widen ? begin / page * page : (begin + page - 1) / page * page;
  if (!widen && end != size) end = end / page * page;
  if (begin >= end) return;
  // Only advice: a kernel that declines it changes nothing but speed.
  madvise(const_cast<std::byte*>(data) + begin, static_cast<size_t>(end - begin), flag);
}

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(absl::string_view path, FileAccess access) {
  const std::string name(path);
  // Not blocking: opening a pipe must lead to an error, not to a wait for its writer.
  const Descriptor file{open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) return ErrnoError(errno, "open", path);
  struct stat info;
  if (fstat(file.fd, &info) != 0) return ErrnoError(errno, "inspect", path);
  if (S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat("\"", path, "\" is a directory, expected a file"));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat("\"", path, "\" is not a regular file"));
  }
  if (info.st_size == 0) {
    return absl::InvalidArgumentError(absl::StrCat("\"", path, "\" is empty"));
  }
  void* data = mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED) return ErrnoError(errno, "map", path);
  MappedFile mapped(name, static_cast<const std::byte*>(data), info.st_size);
  if (access != FileAccess::kNormal) mapped.Advise(0, mapped.size(), access);
  return mapped;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), static_cast<size_t>(size_));
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::Advise(int64_t begin, int64_t end, FileAccess access) const {
  Madvise(data_, size_, begin, end, MadviseFlag(access), /*widen=*/true);
}

void MappedFile::Release(int64_t begin, int64_t end) const {
  Madvise(data_, size_, begin, end, MADV_DONTNEED, /*widen=*/false);
}

}  // namespace mneme
