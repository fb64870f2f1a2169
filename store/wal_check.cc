#include "store/wal_check.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

constexpr size_t kWalHeaderBytes = 32;
constexpr size_t kFrameHeaderBytes = 24;
constexpr uint32_t kWalMagic = 0x377F0682;  // its last bit says that sums are of big-endian words

uint32_t BigEndian(std::span<const std::byte> bytes, size_t offset) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint32_t>(bytes[offset + i]);
  return value;
}

struct WalSum {
  bool big_endian = false;
  uint32_t first = 0;
  uint32_t second = 0;

  void Add(std::span<const std::byte> bytes) {
    for (size_t at = 0; at + 8 <= bytes.size(); at += 8) {
      first += Word(bytes, at) + second;
      second += Word(bytes, at + 4) + first;
    }
  }
  uint32_t Word(std::span<const std::byte> bytes, size_t offset) const {
    const uint32_t word = BigEndian(bytes, offset);
    return big_endian ? word : __builtin_bswap32(word);
  }
  bool Is(std::span<const std::byte> bytes, size_t offset) const {
    return BigEndian(bytes, offset) == first && BigEndian(bytes, offset + 4) == second;
  }
};

}  // namespace

absl::Status CheckWal(FileSystem& files, const std::string& path) {
  const absl::StatusOr<std::unique_ptr<File>> wal = files.Open(path, OpenMode::kRead);
  if (absl::IsNotFound(wal.status())) return absl::OkStatus();
  MNEME_RETURN_IF_ERROR(wal.status());
  std::vector<std::byte> header(kWalHeaderBytes);
  MNEME_ASSIGN_OR_RETURN(const size_t header_bytes, (*wal)->Read(0, header));
  if (header_bytes < kWalHeaderBytes) return absl::OkStatus();
  const uint32_t magic = BigEndian(header, 0);
  const uint32_t page_bytes = BigEndian(header, 8);
  WalSum sum = {.big_endian = (magic & 1) != 0};
  sum.Add(std::span(header).first(24));
  // A header is synced before its first frame is written, so one that is torn has none.
  const bool valid_header =
      (magic & ~1u) == kWalMagic && sum.Is(header, 24) && page_bytes >= 512 && page_bytes <= 65'536;
  if (!valid_header) return absl::OkStatus();

  std::vector<std::byte> frame(kFrameHeaderBytes + page_bytes);
  int64_t bad_frame = -1;
  bool commit_behind = false;  // the bad one
  for (int64_t number = 0;; ++number) {
    const int64_t offset =
        static_cast<int64_t>(kWalHeaderBytes) + number * static_cast<int64_t>(frame.size());
    MNEME_ASSIGN_OR_RETURN(const size_t count, (*wal)->Read(offset, frame));
    if (count < frame.size()) return absl::OkStatus();
    // Frames of other salts are left from before the WAL began anew.
    const bool of_this_wal = BigEndian(frame, 8) == BigEndian(header, 16) &&
                             BigEndian(frame, 12) == BigEndian(header, 20);
    if (bad_frame < 0) {
      sum.Add(std::span(frame).first(8));
      sum.Add(std::span(frame).subspan(kFrameHeaderBytes));
      if (of_this_wal && sum.Is(frame, 16)) continue;
      bad_frame = number;
    } else if (of_this_wal && commit_behind) {
      return absl::DataLossError(
          absl::StrCat(path, ": frame ", bad_frame, " is damaged, and commits behind it are lost"));
    }
    commit_behind |= of_this_wal && BigEndian(frame, 4) != 0;
  }
}

}  // namespace mneme
