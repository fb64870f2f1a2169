#include "server/requests/request_totals.h"

#include "server/security/quota.h"

namespace mneme {
namespace {

// In front of the engine; clients that left, or whose time was up, were not refused.
int64_t Refused(const ServerStats& server, absl::StatusCode code) {
  return server.refused[static_cast<size_t>(code)].value();
}

}  // namespace

int64_t CountRejected(const EngineStats& engine, const ServerStats& server, absl::StatusCode code) {
  const bool was_refused =
      code != absl::StatusCode::kCancelled && code != absl::StatusCode::kDeadlineExceeded;
  return engine.rejected_by(code).value() + (was_refused ? Refused(server, code) : 0);
}

std::map<std::string, int64_t> CountRejectedByReason(const EngineStats& engine,
                                                     const ServerStats& server) {
  std::map<std::string, int64_t> counts = {{kReasonStreamLimit, 0}, {kReasonTokenLimit, 0}};
  for (size_t i = 0; i < engine.rejected_reason.size(); ++i) {
    counts[std::string(EngineStats::RejectReasons()[i])] += engine.rejected_reason[i].value();
  }
  for (const auto& [reason, count] : server.refused_for.Read()) counts[reason] += count;
  return counts;
}

RequestTotals CountRequests(const EngineStats& engine, const ServerStats& server) {
  RequestTotals totals{
      .completed = engine.finished_by(FinishReason::kStop).value() +
                   engine.finished_by(FinishReason::kLength).value(),
      .cancelled = engine.finished_by(FinishReason::kCancelled).value() +
                   Refused(server, absl::StatusCode::kCancelled),
      .deadline = engine.finished_by(FinishReason::kDeadline).value() +
                  Refused(server, absl::StatusCode::kDeadlineExceeded),
      .error = engine.finished_by(FinishReason::kError).value(),
      .replayed = engine.replayed.value(),
  };
  for (size_t code = 0; code < engine.rejected.size(); ++code) {
    totals.rejected += CountRejected(engine, server, static_cast<absl::StatusCode>(code));
  }
  return totals;
}

}  // namespace mneme
