// Files that may change while the server runs are looked at here, on a thread of their own: a file
// system that hangs holds up neither signals nor the watchdog.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace mneme {

class FileWatch {
 public:
  struct Work {
    std::function<void()> reload;  // what Ask asks for
    std::function<void()> poll;    // once every `interval`: has anything changed?
    absl::Duration interval = absl::Seconds(1);
  };

  // All that `work` uses must outlive the thread, which ends with End. RESOURCE_EXHAUSTED where the
  // system gives no thread.
  static absl::StatusOr<std::unique_ptr<FileWatch>> Start(Work work);
  ~FileWatch();  // waits for the thread, unless End has
  FileWatch(const FileWatch&) = delete;
  FileWatch& operator=(const FileWatch&) = delete;

  // --- Any thread ---

  // Has everything read again soon: once for all that asked since it last began. Does not wait.
  void Ask();
  // Lets the thread end, once it is done with what it is at. False if it is not after `timeout`:
  // then nothing that it uses may be destroyed, nor this.
  [[nodiscard]] bool End(absl::Duration timeout);

 private:
  struct Shared;
  explicit FileWatch(std::shared_ptr<Shared> shared);

  const std::shared_ptr<Shared> shared_;  // also the thread's
};

}  // namespace mneme
