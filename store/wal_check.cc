#include "store/wal_check.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

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
  // Back to the sum in front of `bytes`.
  void Remove(std::span<const std::byte> bytes) {
    for (size_t at = bytes.size(); at >= 8; at -= 8) {
      second -= Word(bytes, at - 4) + first;
      first -= Word(bytes, at - 8) + second;
    }
  }
  bool Is(std::span<const std::byte> bytes, size_t offset) const {
    return BigEndian(bytes, offset) == first && BigEndian(bytes, offset + 4) == second;
  }
};

constexpr size_t kSummedHeaderBytes = 8;  // of a frame: the page's number, and the database's size

struct Frame {
  std::span<const std::byte> bytes;
  uint32_t page() const { return BigEndian(bytes, 0); }
  uint32_t database_pages() const { return BigEndian(bytes, 4); }  // 0: it ends no commit
  std::span<const std::byte> content() const { return bytes.subspan(kFrameHeaderBytes); }
  WalSum SumAfter(WalSum sum) const {
    sum.Add(bytes.first(kSummedHeaderBytes));
    sum.Add(content());
    return sum;
  }
  bool Has(const WalSum& sum) const { return sum.Is(bytes, 16); }
  WalSum Stored(const WalSum& like) const {
    return {.big_endian = like.big_endian,
            .first = BigEndian(bytes, 16),
            .second = BigEndian(bytes, 20)};
  }
};

// What a frame says of its page, in front of it.
struct FrameHead {
  int64_t page = 0;
  int64_t database_pages = 0;
};

// The head that would make a frame right whose sum is wrong; there is one for any.
FrameHead SolvedHead(const Frame& frame, const WalSum& before) {
  WalSum sum = frame.Stored(before);
  sum.Remove(frame.content());
  // The inverse of one step of Add.
  uint32_t pages = sum.second - before.second - sum.first;
  uint32_t page = sum.first - before.first - before.second;
  if (!before.big_endian) {
    pages = __builtin_bswap32(pages);
    page = __builtin_bswap32(page);
  }
  return {page, pages};
}

// Frame by frame, what can be known of those behind a damaged one.
class BehindDamage {
 public:
  explicit BehindDamage(WalSum header) : sums_({header}) {}

  void Add(const Frame& frame, int64_t offset, bool of_this_wal) {
    const int64_t page = frame.page();
    for (size_t i = 0; i < sums_.size(); ++i) {
      if (!of_this_wal || !frame.Has(frame.SumAfter(sums_[i]))) continue;
      if (is_suspect_ && i > 0) pages_[suspect_page_] = suspect_offset_;  // only its sum was wrong
      is_suspect_ = false;
      sums_ = {frame.Stored(sums_[i])};
      pages_[page] = offset;
      if (frame.database_pages() != 0) Commit(frame.database_pages());
      return;
    }
    // Of two in a row nobody can say what has changed.
    if (is_suspect_ || !of_this_wal || page == 0) is_certain_ = false;
    is_suspect_ = true;
    solved_.push_back(SolvedHead(frame, sums_[0]));
    suspect_page_ = page;
    suspect_offset_ = offset;
    const WalSum computed = frame.SumAfter(sums_[0]);
    sums_ = {frame.Stored(computed), computed};
    pages_[page] = -1;
  }

  std::optional<WalPages> Pages(const std::string& wal, int64_t page_bytes) const {
    if (database_pages_ == 0 || !is_certain_at_commit_) return std::nullopt;
    WalPages pages = {.wal = wal, .page_bytes = page_bytes, .database_pages = database_pages_};
    for (const auto& [page, offset] : committed_) {
      if (page > database_pages_) continue;
      pages.offsets[page] = offset;
      if (offset < 0) ++pages.unreadable;
    }
    const auto first = pages.offsets.find(1);
    if (first != pages.offsets.end() && first->second < 0) return std::nullopt;
    return pages;
  }

 private:
  // Where a head such as there may be makes a damaged frame right, its page may be whole, and be
  // another one than it says. A database never gets smaller.
  void Commit(int64_t database_pages) {
    for (const FrameHead& head : solved_) {
      const bool may_end = head.database_pages == 0 || (head.database_pages >= database_pages_ &&
                                                        head.database_pages <= database_pages);
      if (may_end && head.page > 0 && head.page <= database_pages) is_certain_ = false;
    }
    solved_.clear();
    is_certain_at_commit_ = is_certain_;
    committed_ = pages_;
    database_pages_ = database_pages;
  }

  std::vector<WalSum> sums_;  // that the next frame may go on from
  std::map<int64_t, int64_t> pages_, committed_;
  int64_t database_pages_ = 0;
  bool is_certain_ = true, is_certain_at_commit_ = true;
  bool is_suspect_ = false;        // the last frame's sum was wrong
  std::vector<FrameHead> solved_;  // of damaged frames since the last commit
  int64_t suspect_page_ = 0, suspect_offset_ = 0;
};

}  // namespace

absl::StatusOr<WalReading> ReadWal(FileSystem& files, const std::string& path) {
  WalReading reading;
  const absl::StatusOr<std::unique_ptr<File>> wal = files.Open(path, OpenMode::kRead);
  if (absl::IsNotFound(wal.status())) return reading;
  MNEME_RETURN_IF_ERROR(wal.status());
  std::vector<std::byte> header(kWalHeaderBytes);
  MNEME_ASSIGN_OR_RETURN(const size_t header_bytes, (*wal)->Read(0, header));
  if (header_bytes < kWalHeaderBytes) return reading;
  const uint32_t magic = BigEndian(header, 0);
  const uint32_t page_bytes = BigEndian(header, 8);
  WalSum sum = {.big_endian = (magic & 1) != 0};
  sum.Add(std::span(header).first(24));
  // A header is synced before its first frame is written, so one that is torn has none.
  const bool valid_header =
      (magic & ~1u) == kWalMagic && sum.Is(header, 24) && page_bytes >= 512 && page_bytes <= 65'536;
  if (!valid_header) return reading;

  std::vector<std::byte> bytes(kFrameHeaderBytes + page_bytes);
  const Frame frame = {bytes};
  int64_t bad_frame = -1;
  bool commit_behind = false;  // the bad one
  BehindDamage behind(sum);
  for (int64_t number = 0;; ++number) {
    const int64_t offset =
        static_cast<int64_t>(kWalHeaderBytes) + number * static_cast<int64_t>(bytes.size());
    MNEME_ASSIGN_OR_RETURN(const size_t count, (*wal)->Read(offset, bytes));
    if (count < bytes.size()) break;
    // Frames of other salts are left from before the WAL began anew.
    const bool of_this_wal = BigEndian(bytes, 8) == BigEndian(header, 16) &&
                             BigEndian(bytes, 12) == BigEndian(header, 20);
    behind.Add(frame, offset + static_cast<int64_t>(kFrameHeaderBytes), of_this_wal);
    if (bad_frame < 0) {
      sum = frame.SumAfter(sum);
      if (of_this_wal && frame.Has(sum)) continue;
      bad_frame = number;
    } else if (of_this_wal && commit_behind && reading.damage.ok()) {
      reading.damage = absl::DataLossError(absl::StrCat(
          path, ": frame ", bad_frame, " is damaged, and there are commits behind it"));
    }
    commit_behind |= of_this_wal && frame.database_pages() != 0;
  }
  if (bad_frame >= 0) reading.behind = behind.Pages(path, page_bytes);
  return reading;
}

absl::Status WriteMended(FileSystem& files, const std::string& database, const WalPages& pages,
                         const std::string& image) {
  const absl::Status removed = files.Remove(image);
  if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
  MNEME_ASSIGN_OR_RETURN(const std::unique_ptr<File> from, files.Open(database, OpenMode::kRead));
  MNEME_ASSIGN_OR_RETURN(const std::unique_ptr<File> wal, files.Open(pages.wal, OpenMode::kRead));
  MNEME_ASSIGN_OR_RETURN(const std::unique_ptr<File> to, files.Open(image, OpenMode::kCreate));
  const int64_t end = pages.database_pages * pages.page_bytes;
  std::vector<std::byte> bytes(size_t{1} << 20);
  for (int64_t offset = 0; offset < end;) {
    MNEME_ASSIGN_OR_RETURN(const size_t read, from->Read(offset, bytes));
    const size_t count = std::min(read, static_cast<size_t>(end - offset));
    if (count == 0) break;
    MNEME_RETURN_IF_ERROR(to->Write(offset, std::span(bytes).first(count)));
    offset += static_cast<int64_t>(count);
  }
  bytes.resize(static_cast<size_t>(pages.page_bytes));
  for (const auto& [page, offset] : pages.offsets) {
    std::fill(bytes.begin(), bytes.end(), std::byte{0xFF});
    if (offset >= 0) {
      MNEME_ASSIGN_OR_RETURN(const size_t count, wal->Read(offset, bytes));
      if (count < bytes.size()) return absl::DataLossError(absl::StrCat(pages.wal, ": was cut"));
    }
    MNEME_RETURN_IF_ERROR(to->Write((page - 1) * pages.page_bytes, bytes));
  }
  return absl::OkStatus();
}

}  // namespace mneme
