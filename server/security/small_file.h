// Files that an operator writes and changes while the server runs: keys and certificates.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace mneme {

// All of a regular file of at most `max_bytes`. INVALID_ARGUMENT names `what` (a flag), path and
// reason.
absl::StatusOr<std::string> ReadSmallFile(absl::string_view what, const std::string& path,
                                          int64_t max_bytes);

// Notices that files were replaced or written to. For one thread.
//
// Asked at intervals, it reports a change one interval after the last sign of one: files that are
// replaced one after the other, or written in pieces, have come to rest by then.
class FileChanges {
 public:
  explicit FileChanges(std::vector<std::string> paths)
      : paths_(std::move(paths)), seen_(Look()), reported_(seen_) {}

  // True once for each change.
  bool Poll();

 private:
  // Device, inode, size and times; zeros for what is not there.
  std::vector<int64_t> Look() const;

  const std::vector<std::string> paths_;
  std::vector<int64_t> seen_;
  std::vector<int64_t> reported_;
};

}  // namespace mneme
