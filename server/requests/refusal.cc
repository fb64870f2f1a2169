#include "server/requests/refusal.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/request_check.h"
#include "engine/status_payload.h"

namespace mneme {

void CountRefusal(const EngineAccess& access, const CallFacts& call, const absl::Status& status) {
  access.stats().Refuse(status);
  LogRefusal(access, call, status);
}

void LogRefusal(const EngineAccess& access, const CallFacts& call, const absl::Status& status) {
  if (access.request_log() == nullptr) return;
  access.request_log()->Add(RefusedReport(call.request_id, call.origin, call.owner, status,
                                          access.clock().Monotonic() - call.received));
}

namespace {

// How many requests of `choices` rows could begin now, where those that run have a row each.
int64_t CouldRun(const Engine& engine, int64_t choices) {
  const EngineStats& stats = engine.stats();
  if (stats.requests_queued.value() > 0) return 0;
  const int64_t running = stats.requests_running.value();
  const int64_t fitting = std::max<int64_t>(0, engine.options().max_rows - running) / choices;
  return running == 0 ? std::max<int64_t>(1, fitting) : fitting;
}

}  // namespace

absl::Status CheckQueue(const Engine& engine, const v1::GenerateRequest& request, size_t prompts) {
  const Classes& classes = engine.model_info().classes;
  MNEME_RETURN_IF_ERROR(CheckKind(/*classify=*/false, classes.exist() ? &classes : nullptr));
  if (!request.session().name().empty()) return absl::OkStatus();
  const int64_t queued = engine.stats().requests_queued.value();
  const int64_t could_run = CouldRun(engine, std::max<int64_t>(1, request.response().n()));
  const int64_t most = engine.options().max_queued_requests;
  const auto asked = static_cast<int64_t>(prompts);
  if (queued + asked - could_run <= most) return absl::OkStatus();
  if (prompts == 1) {
    return QueueFullError(absl::StrCat(queued, " requests are waiting"));
  }
  return QueueFullError(absl::StrCat("a list of ", asked, " prompts is as many requests; ",
                                     could_run, " could run at once, and the queue has room for ",
                                     most - queued));
}

}  // namespace mneme
