// Sessions that are exported or imported, over whichever protocol: how many at once, and how large.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/engine.h"

namespace mneme {

// Threads that make and read files of sessions, for each protocol: that is work of whole seconds,
// which session commands must not wait for.
inline constexpr int kTransferThreads = 2;

// ALREADY_EXISTS where there is such a session, so that nobody sends its file in vain. The engine
// decides: there may be one by the time that the file has come.
absl::Status CheckNameIsFree(Engine& engine, const SessionKey& key);

// Thread-safe.
class SessionTransfers {
 public:
  struct Limits {
    int at_once = 4;         // 0: none
    int64_t file_bytes = 0;  // of one that is imported; 0: of the model's largest session
  };
  enum Direction { kExport, kImport };
  static constexpr int kDirections = 2;

  // What became of files, so far and now.
  struct Counts {
    std::atomic<int64_t> running = 0;
    std::atomic<int64_t> whole = 0;    // sent, or imported
    std::atomic<int64_t> failed = 0;   // begun, and not whole
    std::atomic<int64_t> refused = 0;  // for want of a place
    std::atomic<int64_t> bytes = 0;    // of those that are whole
  };

  // One that is under way has a place as long as this lives. Thread-safe.
  class Transfer {
   public:
    explicit Transfer(std::shared_ptr<Counts> counts);
    ~Transfer();
    Transfer(const Transfer&) = delete;
    Transfer& operator=(const Transfer&) = delete;
    // All of its `bytes` have arrived.
    void Complete(int64_t bytes) const;

   private:
    const std::shared_ptr<Counts> counts_;
    mutable std::atomic<bool> is_whole_ = false;
  };

  explicit SessionTransfers(const Limits& limits);

  // RESOURCE_EXHAUSTED where there is no place, FAILED_PRECONDITION where there never is.
  absl::StatusOr<std::shared_ptr<const Transfer>> Begin(Direction direction);

  const Counts& counts(Direction direction) const { return *counts_[direction]; }

  int64_t MaxFileBytes(const Engine& engine) const;
  // RESOURCE_EXHAUSTED, reason FILE_TOO_LARGE, of more bytes.
  absl::Status CheckFileBytes(const Engine& engine, int64_t bytes) const;

 private:
  const Limits limits_;
  absl::Mutex mu_;  // of two that come for the last place one gets it
  std::array<std::shared_ptr<Counts>, kDirections> counts_;
};

}  // namespace mneme
