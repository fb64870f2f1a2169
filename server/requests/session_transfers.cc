#include "server/requests/session_transfers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/status_payload.h"

namespace mneme {

absl::Status CheckNameIsFree(Engine& engine, const SessionKey& key) {
  if (!engine.GetSession(key).ok()) return absl::OkStatus();
  return WithReason(
      absl::AlreadyExistsError(absl::StrCat("there is a session \"", key.name, "\" already")),
      kReasonSessionExists);
}

SessionTransfers::Transfer::Transfer(std::shared_ptr<Counts> counts) : counts_(std::move(counts)) {
  ++counts_->running;
}

SessionTransfers::Transfer::~Transfer() {
  --counts_->running;
  if (!is_whole_) ++counts_->failed;
}

void SessionTransfers::Transfer::Complete(int64_t bytes) const {
  if (is_whole_.exchange(true)) return;
  ++counts_->whole;
  counts_->bytes += bytes;
}

SessionTransfers::SessionTransfers(const Limits& limits) : limits_(limits) {
  for (auto& counts : counts_) counts = std::make_shared<Counts>();
}

absl::StatusOr<std::shared_ptr<const SessionTransfers::Transfer>> SessionTransfers::Begin(
    Direction direction) {
  Counts& counts = *counts_[direction];
  if (limits_.at_once == 0) {
    ++counts.refused;
    return absl::FailedPreconditionError(
        "this server exports and imports no sessions (--max-session-transfers is 0)");
  }
  {
    const absl::MutexLock lock(&mu_);
    if (counts_[kExport]->running + counts_[kImport]->running < limits_.at_once) {
      return std::make_shared<const Transfer>(counts_[direction]);
    }
  }
  ++counts.refused;
  return WithRetryAfter(
      WithReason(absl::ResourceExhaustedError(absl::StrCat(
                     limits_.at_once, limits_.at_once == 1 ? " session is" : " sessions are",
                     " being exported or imported, expected fewer (--max-session-transfers)")),
                 kReasonQueueFull),
      absl::Seconds(1));
}

int64_t SessionTransfers::MaxFileBytes(const Engine& engine) const {
  const int64_t most = engine.max_session_file_bytes();
  return limits_.file_bytes > 0 ? std::min(limits_.file_bytes, most) : most;
}

absl::Status SessionTransfers::CheckFileBytes(const Engine& engine, int64_t bytes) const {
  const int64_t most = MaxFileBytes(engine);
  if (bytes <= most) return absl::OkStatus();
  return WithReason(
      absl::ResourceExhaustedError(absl::StrCat(
          "the session's file has ", bytes, " bytes or more, expected at most ", most,
          most < engine.max_session_file_bytes() ? " (--max-session-file-size)"
                                                 : ", which no session of this model exceeds")),
      kReasonFileTooLarge);
}

}  // namespace mneme
