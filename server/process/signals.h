// The signals of the process, and that it ends in time once one has come.
#pragma once

#include <signal.h>

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace mneme {

// How long to wait for one between looks at something else.
inline constexpr absl::Duration kSignalPoll = absl::Milliseconds(100);

void LogSignal(int signal, absl::string_view consequence = "");

// SIGINT, SIGTERM and SIGHUP. A thread of their own takes them until the process is gone, whatever
// others are busy with, main() and destructors included. It does nothing that could be held up, so
// it logs nothing: what it does about a process that does not end is to end it.
class Signals {
 public:
  // To be called before any other thread is started: they inherit the mask. RESOURCE_EXHAUSTED
  // where the system gives no thread.
  static absl::StatusOr<std::unique_ptr<Signals>> Start();
  ~Signals() = default;  // the thread goes on
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  // --- For the thread that waits ---

  // `reload` is called at SIGHUP, inside Wait, so it must not take long; once for all that have
  // come since the last time. Without it SIGHUP is a signal to end, as by default.
  void OnHangUp(std::function<void()> reload);

  // The next signal to end, which goes before any SIGHUP, or 0 after `timeout` or `reload`. At a
  // second one the caller has a moment for last words, then the process ends with 128 plus the
  // signal.
  int Wait(absl::Duration timeout);

  // --- Any thread ---

  // The process has so much time from the first signal to end on; then it ends with kEndedByForce.
  void LimitEnd(absl::Duration time);
  // It ends with `code` in so much time from now, unless it has ended before.
  void EndWithin(absl::Duration time, int code);

 private:
  struct Shared;
  explicit Signals(std::shared_ptr<Shared> shared);

  const std::shared_ptr<Shared> shared_;  // also the thread's
  std::function<void()> reload_;
};

}  // namespace mneme
