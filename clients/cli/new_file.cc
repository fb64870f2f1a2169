#include "clients/cli/new_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace mneme::cli {
namespace {

absl::Status SystemError(absl::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot ", what, " ", path));
}

absl::Status Taken(const std::string& path) {
  return absl::AlreadyExistsError(absl::StrCat(path, " exists; --force overwrites it"));
}

}  // namespace

NewFile::NewFile(std::string path, std::string partial, int file, bool replace)
    : path_(std::move(path)), partial_(std::move(partial)), replace_(replace), file_(file) {}

absl::StatusOr<std::unique_ptr<NewFile>> NewFile::Create(const std::string& path, bool replace) {
  struct stat found;
  if (lstat(path.c_str(), &found) == 0) {
    if (!replace) return Taken(path);
    // It is replaced by a rename, which must not do away with a device or a folder.
    if (!S_ISREG(found.st_mode)) {
      return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
    }
  }
  std::string partial = absl::StrCat(path, ".XXXXXX");
  const int file = mkostemp(partial.data(), O_CLOEXEC);  // with mode 0600
  if (file < 0) return SystemError("create", path);
  return absl::WrapUnique(new NewFile(path, std::move(partial), file, replace));
}

NewFile::~NewFile() {
  if (file_ >= 0) close(file_);
  if (!named_) std::remove(partial_.c_str());
}

absl::Status NewFile::Write(absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(file_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError("write", path_);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status NewFile::Finish() {
  if (fsync(file_) != 0) return SystemError("write", path_);
  if (close(std::exchange(file_, -1)) != 0) return SystemError("write", path_);
  MNEME_RETURN_IF_ERROR(GiveName());
  // The name is on the disk once its folder is.
  const std::string parent = std::filesystem::path(path_).parent_path().string();
  const int folder =
      open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return SystemError("open the folder of", path_);
  const int synced = fsync(folder);
  close(folder);
  return synced == 0 ? absl::OkStatus() : SystemError("write the folder of", path_);
}

absl::Status NewFile::GiveName() {
  if (replace_) {
    if (std::rename(partial_.c_str(), path_.c_str()) != 0) return SystemError("create", path_);
    named_ = true;
    return absl::OkStatus();
  }
  // Unlike a rename, a link never replaces what has come meanwhile.
  if (link(partial_.c_str(), path_.c_str()) == 0) return absl::OkStatus();
  return errno == EEXIST ? Taken(path_) : SystemError("create", path_);
}

}  // namespace mneme::cli
