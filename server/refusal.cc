#include "server/refusal.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/status_payload.h"

namespace mneme {

void CountRefusal(const EngineAccess& access, const CallFacts& call, const absl::Status& status) {
  access.stats().Refuse(status);
  LogRefusal(access, call, status);
}

void LogRefusal(const EngineAccess& access, const CallFacts& call, const absl::Status& status) {
  if (access.request_log() == nullptr) return;
  access.request_log()->Add(
      RefusedReport(call.request_id, call.origin, call.owner, status, absl::Now() - call.received));
}

absl::Status CheckQueue(const Engine& engine, const v1::GenerateRequest& request, size_t prompts) {
  if (!request.session().name().empty()) return absl::OkStatus();
  const EngineStats& stats = engine.stats();
  const int64_t queued = stats.requests_queued.value();
  const int64_t free_rows =
      queued > 0 ? 0
                 : std::max<int64_t>(0, engine.options().max_rows - stats.requests_running.value());
  const int64_t most = engine.options().max_queued_requests;
  const auto asked = static_cast<int64_t>(prompts);
  if (queued + asked - free_rows <= most) return absl::OkStatus();
  if (prompts == 1) {
    return QueueFullError(absl::StrCat(queued, " requests are waiting"));
  }
  return QueueFullError(absl::StrCat("a list of ", asked, " prompts is as many requests; ",
                                     free_rows, " could run at once, and the queue has room for ",
                                     most - queued));
}

}  // namespace mneme
