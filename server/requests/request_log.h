// One line for each request to generate, at its end: who, what came of it, how much, how long.
// Never a word of the prompt or the answer.
#pragma once

#include <atomic>
#include <memory>

#include "absl/strings/string_view.h"
#include "engine/request_report.h"
#include "server/requests/executor.h"
#include "server/requests/server_stats.h"

namespace mneme {

// Thread-safe. A thread of its own makes the lines, so that the engine's loop, which reports most
// ends, does not: they are not short. Lines that come faster than they are made, or than the log
// takes them (log_writer.h), are dropped and counted.
class RequestLog {
 public:
  enum class Which { kAll, kFailed, kNone };

  // `stats` must outlive it.
  RequestLog(Which which, ServerStats& stats);

  void Add(RequestReport report);
  void set_which(Which which) { which_.store(which, std::memory_order_relaxed); }

 private:
  ServerStats& stats_;
  std::atomic<Which> which_;
  Executor writer_;
};

// "completed", "cancelled", "deadline", "error", "rejected", "replayed": as in the metrics.
absl::string_view OutcomeOf(const RequestReport& report);

// For a request that Submit did not take.
RequestReport RefusedReport(std::string id, RequestOrigin origin, std::string owner,
                            absl::Status status, absl::Duration total);

}  // namespace mneme
