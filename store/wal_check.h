// Tells a WAL that a power loss has cut off from one whose bytes have changed since, and reads on
// behind such bytes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/file_system.h"

namespace mneme {

// What a WAL says of its database's pages. The bytes are those of SQLite's file format, "The
// Write-Ahead Log".
struct WalPages {
  std::string wal;  // its path
  int64_t page_bytes = 0;
  int64_t database_pages = 0;          // after its last commit
  std::map<int64_t, int64_t> offsets;  // in the WAL, of each page as it was written last; -1: that
                                       // is unreadable
  int unreadable = 0;                  // pages
};

struct WalReading {
  // SQLite reads a WAL up to the first frame whose checksum is wrong, and says nothing of what is
  // behind. Each commit is synced before the next one is written, so that after a power loss there
  // is at most one commit behind such a frame, and nothing behind that. DATA_LOSS where there is
  // more: a frame that was on the disk is damaged. The last commit's damage cannot be told from a
  // power loss here (but see commit_mark.h).
  absl::Status damage;
  // Where a frame is damaged and others behind it are not: a frame's checksum goes on from that of
  // the frame before it, as it is written there, so that each can be checked alone. Nothing unless
  // it is certain which pages the damaged ones are of: only bytes of their pages have changed.
  std::optional<WalPages> behind;
};

// OK and nothing behind where there is no WAL. Reads all of it.
absl::StatusOr<WalReading> ReadWal(FileSystem& files, const std::string& path);

// Writes to `image`, and does not sync, what the database would be with all of its WAL. Pages that
// are unreadable are such that SQLite finds them damaged.
absl::Status WriteMended(FileSystem& files, const std::string& database, const WalPages& pages,
                         const std::string& image);

}  // namespace mneme
