// The sizes and memory of an engine: one reckoning for engines that start and for --plan.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "engine/capacity_plan.h"
#include "engine/engine.h"
#include "engine/model_runner.h"
#include "kernels/backend.h"

namespace mneme {

// The needs of a model, whether or not it is loaded.
struct ModelNeeds {
  int64_t slab_bytes = 0;     // SessionBytes
  int64_t growing_bytes = 0;  // of them, as of StateLayout
  int outputs = 0;            // columns of the logits
  int segment = 0;            // tokens that no step cuts (Classes); 0: any
  std::function<int64_t(int tokens, int rows, int logit_rows)> workspace_bytes;  // as of Model
  int64_t unread_bytes = 0;    // of weights that are not in memory yet
  int64_t snapshot_bytes = 0;  // of the host's memory, for snapshots on their way to files
};

struct EnginePlan {
  int64_t available_bytes = 0;  // on the device, now
  int64_t runner_bytes = 0;     // of the largest step
  RunnerLimits largest_step;
  CapacityPlan capacity;
};

// INVALID_ARGUMENT for options out of range, RESOURCE_EXHAUSTED where no session fits. `options`
// become what the engine goes by: what is left to the device is filled in, and no step has more
// rows than tokens or than there are sessions.
absl::StatusOr<EnginePlan> PlanEngine(const Backend& backend, const ModelNeeds& model,
                                      EngineOptions& options);

}  // namespace mneme
