// Notices an engine that does not get on with its step: warns at half of --watchdog-timeout, and
// gives up on it at the whole.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/engine.h"
#include "server/server_stats.h"

namespace mneme {

// For one thread, which polls several times a second. Both arguments must outlive it.
class Watchdog {
 public:
  Watchdog(const Engine& engine, ServerStats& stats) : engine_(engine), stats_(stats) {}

  // The engine's health: not OK once it is stuck or its device has failed. Logs a step that is
  // late, with its phase, and when such a step went on after all.
  absl::Status Poll();

 private:
  const Engine& engine_;
  ServerStats& stats_;
  bool is_late_ = false;
  int64_t late_step_ = 0;
  absl::Duration late_by_;  // the longest that was seen
};

}  // namespace mneme
