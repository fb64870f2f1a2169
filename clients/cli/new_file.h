// A file that is there whole or not at all.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace mneme::cli {

// Written beside its place, readable by its owner alone, and given its name when it is on the disk.
// Errors name the path that was asked for, and what the system said.
class NewFile {
 public:
  // ALREADY_EXISTS where there is something at `path`, unless `replace`.
  static absl::StatusOr<std::unique_ptr<NewFile>> Create(const std::string& path, bool replace);
  ~NewFile();  // removes what is not finished
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  absl::Status Write(absl::string_view bytes);
  absl::Status Finish();

 private:
  NewFile(std::string path, std::string partial, int file, bool replace);
  absl::Status GiveName();

  const std::string path_;
  const std::string partial_;
  const bool replace_;
  int file_;
  bool named_ = false;
};

}  // namespace mneme::cli
