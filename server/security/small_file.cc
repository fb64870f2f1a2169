#include "server/security/small_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"

namespace mneme {

absl::StatusOr<std::string> ReadSmallFile(absl::string_view what, const std::string& path,
                                          int64_t max_bytes) {
  const auto wrong = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(what, " \"", path, "\": ", why));
  };
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return wrong(strerror(errno));
  if (!S_ISREG(info.st_mode)) return wrong("is not a file");
  if (info.st_size > max_bytes) {
    return wrong(absl::StrCat("has ", info.st_size, " bytes, expected at most ", max_bytes));
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || (file.peek() != EOF && !(text << file.rdbuf()))) {
    return wrong(errno != 0 ? strerror(errno) : "cannot be read");
  }
  return text.str();
}

std::vector<int64_t> FileChanges::Look() const {
  std::vector<int64_t> facts;
  for (const std::string& path : paths_) {
    struct stat info {};
    if (stat(path.c_str(), &info) != 0) info = {};
    facts.insert(facts.end(), {static_cast<int64_t>(info.st_dev), static_cast<int64_t>(info.st_ino),
                               static_cast<int64_t>(info.st_size), info.st_mtim.tv_sec,
                               info.st_mtim.tv_nsec, info.st_ctim.tv_sec, info.st_ctim.tv_nsec});
  }
  return facts;
}

bool FileChanges::Poll() {
  std::vector<int64_t> now = Look();
  const bool at_rest = now == seen_;
  seen_ = std::move(now);
  if (!at_rest || seen_ == reported_) return false;
  reported_ = seen_;
  return true;
}

}  // namespace mneme
