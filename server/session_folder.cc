#include "server/session_folder.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

absl::Status Refuse(const std::string& path, absl::string_view fault) {
  return absl::InvalidArgumentError(absl::StrCat("--session-dir: ", path, " ", fault));
}

absl::Status RefuseForErrno(const std::string& path, absl::string_view what) {
  return Refuse(path, absl::ErrnoToStatus(errno, what).message());
}

absl::Status CheckAccess(const std::string& folder, int mode) {
  if (faccessat(AT_FDCWD, folder.c_str(), mode, AT_EACCESS) == 0) return absl::OkStatus();
  return RefuseForErrno(folder, "cannot be used");
}

// The one that `folder` is in.
std::string ParentOf(std::string folder) {
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  const std::string parent = std::filesystem::path(folder).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace

absl::Status CheckSessionFolder(const std::string& folder) {
  const std::string parent = ParentOf(folder);
  struct stat facts;
  if (lstat(folder.c_str(), &facts) != 0) {
    if (errno != ENOENT) return RefuseForErrno(folder, "cannot be looked at");
    if (stat(parent.c_str(), &facts) != 0) {
      return RefuseForErrno(folder, absl::StrCat("cannot be made in ", parent));
    }
    MNEME_RETURN_IF_ERROR(CheckAccess(parent, R_OK | W_OK | X_OK));
    // Not all of what may be written has room for folders, such as /proc.
    if (mkdir(folder.c_str(), 0700) != 0) return RefuseForErrno(folder, "cannot be made");
    return rmdir(folder.c_str()) == 0 ? absl::OkStatus()
                                      : RefuseForErrno(folder, "cannot be removed again");
  }
  if (stat(folder.c_str(), &facts) != 0) return RefuseForErrno(folder, "leads nowhere");
  if (!S_ISDIR(facts.st_mode)) return Refuse(folder, "is not a folder");
  MNEME_RETURN_IF_ERROR(CheckAccess(parent, R_OK));  // its name is synced there
  MNEME_RETURN_IF_ERROR(CheckAccess(folder, R_OK | W_OK | X_OK));
  std::string probe = folder + "/plan.XXXXXX";
  const int fd = mkstemp(probe.data());
  if (fd < 0) return RefuseForErrno(folder, "takes no files");
  close(fd);
  return unlink(probe.c_str()) == 0 ? absl::OkStatus()
                                    : RefuseForErrno(folder, "lets no files be removed");
}

}  // namespace mneme
