#include "store/commit_mark.h"

#include <array>
#include <cstddef>
#include <span>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "store/record.h"

namespace mneme {
namespace {

constexpr char kName[] = "mark of commits";

}  // namespace

int64_t CommitMark::Read() const {
  const absl::StatusOr<std::unique_ptr<File>> file = files_.Open(path_, OpenMode::kRead);
  if (!file.ok()) return 0;
  std::array<std::byte, 64> bytes;
  const absl::StatusOr<size_t> size = (*file)->Read(0, bytes);
  if (!size.ok()) return 0;
  absl::StatusOr<RecordReader> values = RecordReader::Open(
      absl::string_view(reinterpret_cast<const char*>(bytes.data()), *size), kName);
  if (!values.ok()) return 0;
  const auto commits = static_cast<int64_t>(values->Fixed64());
  return values->End(kName).ok() ? commits : 0;
}

void CommitMark::Write(int64_t commits) {
  if (file_ == nullptr) {
    absl::StatusOr<std::unique_ptr<File>> opened = files_.Open(path_, OpenMode::kOpenOrCreate);
    if (!opened.ok()) return;
    file_ = *std::move(opened);
  }
  const std::string record =
      std::move(RecordWriter().Fixed64(static_cast<uint64_t>(commits))).Seal(kName);
  const absl::Status written =
      file_->Write(0, std::as_bytes(std::span(record.data(), record.size())));
  if (!written.ok()) file_.reset();
}

}  // namespace mneme
