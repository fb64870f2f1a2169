// The server's own counts, in front of the engine's.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "engine/counters.h"
#include "engine/status_payload.h"
#include "server/process/reload_counts.h"

namespace mneme {

// Counts by two labels. Who adds keeps the number of different ones small: routes, not paths.
// Thread-safe.
class LabelledCounts {
 public:
  using Labels = std::pair<std::string, std::string>;

  void Add(std::string first, std::string second) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    ++counts_[{std::move(first), std::move(second)}];
  }
  std::map<Labels, int64_t> Read() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return counts_;
  }

 private:
  mutable absl::Mutex mu_;
  std::map<Labels, int64_t> counts_ ABSL_GUARDED_BY(mu_);
};

// Counts of refused requests by the reason of their error, of which the code knows some dozens.
// Thread-safe.
class ReasonCounts {
 public:
  void Add(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    std::string reason = ReasonOf(status).value_or("OTHER");
    absl::MutexLock lock(&mu_);
    ++counts_[std::move(reason)];
  }
  std::map<std::string, int64_t> Read() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return counts_;
  }

 private:
  mutable absl::Mutex mu_;
  std::map<std::string, int64_t> counts_ ABSL_GUARDED_BY(mu_);
};

// Connections of one port. `open` includes those that closed within the last second.
struct ConnectionStats {
  Gauge limit;  // 0: there is no such port
  Gauge open;
  Counter refused;  // one too many
  Counter evicted;  // closed because others came, and they were of no use: security.md
};

struct ServerStats {
  LabelledCounts rpcs;              // method, status code: calls that ended
  LabelledCounts http;              // route, status: answers
  std::array<Counter, 17> refused;  // requests that never reached the engine, by StatusCode
  ReasonCounts refused_for;         // and by reason; clients that left or were late left out
  ReloadCounts config_reloads;      // the file of --config, at SIGHUP
  ConnectionStats grpc_connections;
  ConnectionStats http_connections;
  ConnectionStats metrics_connections;
  Counter watchdog_warnings;          // steps that took more than half of the watchdog's time
  Counter request_log_lines_dropped;  // standard error took them too slowly

  void Refuse(const absl::Status& status) {
    refused[static_cast<size_t>(status.code())].Add();
    if (!absl::IsCancelled(status) && !absl::IsDeadlineExceeded(status)) refused_for.Add(status);
  }
};

}  // namespace mneme
