// How many commits of the catalogue are known to be on the disk, in a file of its own: what tells a
// catalogue that has lost its end from one that power failed under.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "store/file_system.h"

namespace mneme {

//   file := record: commits:fixed64
//
// It is written after each commit's sync, and never synced itself, which costs a commit some
// microseconds. So it never says more than is on the disk, and after a power loss it may say less,
// or nothing: what is missing then, up to what it says, was on the disk and is not any more. Used
// by one thread at a time.
class CommitMark {
 public:
  CommitMark(FileSystem& files, std::string path) : files_(files), path_(std::move(path)) {}

  // 0 where nothing can be read.
  int64_t Read() const;
  // What fails is left: the file says less then.
  void Write(int64_t commits);

 private:
  FileSystem& files_;
  const std::string path_;
  std::unique_ptr<File> file_;  // once it was written
};

}  // namespace mneme
