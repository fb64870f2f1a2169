// How many sessions fit, computed from numbers known before weights are read.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/tensor_view.h"

namespace mneme {

struct EngineOptions;
struct RunnerLimits;

struct CapacityPlan {
  int64_t slab_bytes = 0;
  int64_t state_memory_bytes = 0;  // budget: what was given, or what is available less a reserve
  // Where a budget was given that is not available: that budget, and the reserve that the plan
  // leaves in its place.
  int64_t asked_bytes = 0;
  int64_t reserve_bytes = 0;
  int sessions = 0;
  int64_t host_bytes = 0;    // EngineOptions::host_state_memory_bytes
  int64_t prefix_bytes = 0;  // EngineOptions::prefix_cache_memory_bytes

  // "1234 sessions fit in 150.0 GiB (122.1 MiB each)", how many more can be parked, and how many
  // beginnings of prompts are kept.
  std::string ToString() const;
};

// The largest step that an engine with these options makes.
RunnerLimits LargestStep(const EngineOptions& options);

// Memory that the runner of such steps takes beside the slabs: workspace, as Model::WorkspaceBytes
// and ModelPlan say it, and logits.
int64_t RunnerBytes(const RunnerLimits& largest_step, int64_t workspace_bytes, int outputs,
                    DType activation_dtype);

// `available_bytes`: memory left beside weights and workspace, negative where those do not fit.
// Without a given budget
// `reserve_bytes` of it (Backend::ReserveBytes) are left; a budget that is more than there is gets
// cut to the same. One that fits is taken as it is, reserve or not.
// RESOURCE_EXHAUSTED, with the numbers, where not even one slab fits.
absl::StatusOr<CapacityPlan> PlanCapacity(int64_t slab_bytes, int64_t available_bytes,
                                          int64_t reserve_bytes, const EngineOptions& options);

}  // namespace mneme
