// A whole file, mapped read-only: weights are paged in as they are read, and shared between
// processes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace mneme {

// How a mapping will be read, as advice to the kernel.
enum class FileAccess { kNormal, kWillNeed };

// Movable, not copyable; the bytes stay where they are when it moves. The file must not be
// truncated while it is mapped: reading beyond the new end would raise SIGBUS.
class MappedFile {
 public:
  // NOT_FOUND, PERMISSION_DENIED, FAILED_PRECONDITION for a directory or other special file,
  // INVALID_ARGUMENT for an empty file; all name the path.
  static absl::StatusOr<MappedFile> Open(absl::string_view path,
                                         FileAccess access = FileAccess::kNormal);

  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, static_cast<size_t>(size_)}; }
  absl::string_view text() const {
    return {reinterpret_cast<const char*>(data_), static_cast<size_t>(size_)};
  }
  int64_t size() const { return size_; }
  const std::string& path() const { return path_; }

  // Advice for the bytes [begin, end), widened to whole pages. kNormal takes earlier advice back.
  void Advise(int64_t begin, int64_t end, FileAccess access) const;
  // Drops the pages of [begin, end) from this process, for bytes that were copied elsewhere.
  void Release(int64_t begin, int64_t end) const;

 private:
  MappedFile(std::string path, const std::byte* data, int64_t size)
      : path_(std::move(path)), data_(data), size_(size) {}

  std::string path_;
  const std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace mneme
