#include "server/refusal.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/status_payload.h"

namespace mneme {

void CountRefusal(const EngineAccess& access, const CallFacts& call, const absl::Status& status) {
  access.stats().Refuse(status.code());
  LogRefusal(access, call, status);
}

void LogRefusal(const EngineAccess& access, const CallFacts& call, const absl::Status& status) {
  if (access.request_log() == nullptr) return;
  access.request_log()->Add(
      RefusedReport(call.request_id, call.origin, call.owner, status, absl::Now() - call.received));
}

absl::Status CheckQueue(const Engine& engine, const v1::GenerateRequest& request) {
  const int64_t queued = engine.stats().requests_queued.value();
  if (!request.session().name().empty() || queued < engine.options().max_queued_requests) {
    return absl::OkStatus();
  }
  return QueueFullError(absl::StrCat("the queue is full: ", queued, " requests are waiting"));
}

}  // namespace mneme
