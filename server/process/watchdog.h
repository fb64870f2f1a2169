// Notices an engine that does not get on with its step: says so at half of --watchdog-timeout, by
// health and in the log, and gives up on it at the whole.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/engine.h"
#include "server/requests/server_stats.h"

namespace mneme {

struct WatchdogOptions {
  absl::Duration limit;  // --watchdog-timeout
  // How often Poll is called. Where it comes later, the process was stopped, or the machine was
  // suspended or had no time for it; the engine could not get on either, and is not blamed.
  absl::Duration poll_interval;
  // Told when the engine begins to be late, and when it goes on: before anything is logged.
  std::function<void(bool is_late)> on_late;
};

// For one thread. All arguments must outlive it.
class Watchdog {
 public:
  Watchdog(const Engine& engine, Clock& clock, ServerStats& stats, WatchdogOptions options)
      : engine_(engine),
        clock_(clock),
        stats_(stats),
        options_(std::move(options)),
        last_poll_(clock.Monotonic()) {}

  // Not OK once the engine is stuck or its device has failed. Logs a step that is late, with its
  // phase, when such a step went on after all, and for how long nobody looked.
  absl::Status Poll();

 private:
  struct Gap {  // on the monotonic clock
    absl::Duration begin;
    absl::Duration end;
  };

  void NoticeGap(absl::Duration now);
  // `activity` less the time for which the process did not run.
  LoopActivity WithoutGaps(LoopActivity activity, absl::Duration now);

  const Engine& engine_;
  Clock& clock_;
  ServerStats& stats_;
  const WatchdogOptions options_;
  absl::Duration last_poll_;  // monotonic
  std::vector<Gap> gaps_;     // since the turn under way began
  bool is_late_ = false;
  int64_t late_step_ = 0;
  absl::Duration late_by_;  // the longest that was seen
};

}  // namespace mneme
