// Tells a WAL that a power loss has cut off from one whose bytes have changed since.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "store/file_system.h"

namespace mneme {

// SQLite reads a WAL up to the first frame whose checksum is wrong, and says nothing of what is
// behind. Each commit is synced before the next one is written, so that after a power loss there is
// at most one commit behind such a frame, and nothing behind that. DATA_LOSS where there is more: a
// frame that was on the disk is damaged. OK where there is no WAL.
//
// The bytes are those of SQLite's file format, "The Write-Ahead Log". The last commit's damage
// cannot be told from a power loss here (but see commit_mark.h).
absl::Status CheckWal(FileSystem& files, const std::string& path);

}  // namespace mneme
