#include "engine/capacity_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/human_bytes.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/model_runner.h"

namespace mneme {

std::string CapacityPlan::ToString() const {
  return absl::StrCat(
      sessions, sessions == 1 ? " session fits" : " sessions fit", " in ",
      HumanBytes(state_memory_bytes), " (", HumanBytes(slab_bytes), " each",
      asked_bytes > 0 ? absl::StrCat("; ", HumanBytes(asked_bytes),
                                     " asked for, cut to what is available less a reserve of ",
                                     HumanBytes(reserve_bytes))
                      : "",
      ")",
      host_bytes > 0 ? absl::StrCat("; ", host_bytes / slab_bytes - 1, " more are parked in ",
                                    HumanBytes(host_bytes), " of the host")
                     : "",
      prefix_bytes > 0
          ? absl::StrCat("; states behind beginnings of prompts take ", HumanBytes(prefix_bytes),
                         " of the host, at least ", prefix_bytes / slab_bytes, " of them")
          : "");
}

RunnerLimits LargestStep(const EngineOptions& options) {
  const int rows = std::min(options.max_rows, options.max_tokens_per_step);
  return {.rows = rows,
          .tokens = options.max_tokens_per_step,
          .logit_rows = rows + options.max_logit_rows_per_step,
          .graphs = options.graphs};
}

int64_t RunnerBytes(const RunnerLimits& largest_step, int64_t workspace_bytes, int outputs,
                    DType activation_dtype) {
  return workspace_bytes + int64_t{largest_step.logit_rows} * outputs * SizeOf(activation_dtype);
}

absl::StatusOr<CapacityPlan> PlanCapacity(int64_t slab_bytes, int64_t available_bytes,
                                          int64_t reserve_bytes, const EngineOptions& options) {
  CHECK_GT(slab_bytes, 0);
  if (available_bytes < 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no session fits: weights and workspace take ", HumanBytes(-available_bytes),
        " more than there is, and the state of one takes another ", HumanBytes(slab_bytes)));
  }
  constexpr int64_t kMaxSessions = int64_t{1} << 24;
  CapacityPlan plan = {.slab_bytes = slab_bytes,
                       .host_bytes = options.host_state_memory_bytes,
                       .prefix_bytes = options.prefix_cache_memory_bytes};
  const int64_t asked = options.state_memory_bytes;
  const bool fits = asked > 0 && asked <= available_bytes;
  plan.state_memory_bytes = fits ? asked : std::max<int64_t>(0, available_bytes - reserve_bytes);
  if (asked > 0 && !fits) {
    plan.asked_bytes = asked;
    plan.reserve_bytes = reserve_bytes;
  }
  int64_t sessions = std::min(plan.state_memory_bytes / slab_bytes, kMaxSessions);
  if (options.max_sessions > 0) sessions = std::min<int64_t>(sessions, options.max_sessions);
  plan.sessions = static_cast<int>(sessions);
  if (sessions == 0) {
    // Numbers of which one is less than the other must not look equal.
    const bool look_equal =
        HumanBytes(slab_bytes) == HumanBytes(plan.state_memory_bytes) ||
        (asked > 0 && !fits && HumanBytes(asked) == HumanBytes(available_bytes));
    const auto shown = [&](int64_t bytes) {
      return look_equal ? absl::StrCat(bytes, " bytes") : HumanBytes(bytes);
    };
    return absl::ResourceExhaustedError(absl::StrCat(
        "no session fits: the state of one takes ", shown(slab_bytes), ", and there are ",
        shown(plan.state_memory_bytes), " for states",
        options.state_memory_bytes > 0
            ? absl::StrCat(" (the configured budget is ", shown(asked),
                           fits ? ")"
                                : absl::StrCat(", ", shown(available_bytes),
                                               " are available, less a reserve)"))
            : absl::StrCat(" (", shown(available_bytes), " available, less a reserve)")));
  }
  return plan;
}

}  // namespace mneme
