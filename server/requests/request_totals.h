// Requests to generate that ended, by what came of them: those that the engine had, and those that
// never reached it. Metrics and GetInfo tell the same numbers.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "engine/engine_stats.h"
#include "server/requests/server_stats.h"

namespace mneme {

struct RequestTotals {
  int64_t completed = 0;
  int64_t cancelled = 0;  // the client left
  int64_t deadline = 0;
  int64_t error = 0;     // ran and failed
  int64_t rejected = 0;  // never ran
  int64_t replayed = 0;
};

RequestTotals CountRequests(const EngineStats& engine, const ServerStats& server);

// The rejected ones with status `code`.
int64_t CountRejected(const EngineStats& engine, const ServerStats& server, absl::StatusCode code);

// The same by reason; those that an operator waits for are there before they happen, with 0.
std::map<std::string, int64_t> CountRejectedByReason(const EngineStats& engine,
                                                     const ServerStats& server);

}  // namespace mneme
