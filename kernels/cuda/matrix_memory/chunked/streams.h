// What runs ahead of the chunked gated delta rule in a DeltaMemoryPass.
#pragma once

#include "kernels/cuda/common/device.h"
#include "kernels/cuda/matrix_memory/chunked/plan.h"
#include "kernels/kernels.h"

namespace mneme::cuda::matrix_memory::chunked {

// Whether this takes the convolutions; chunked.h says which delta rules.
bool Supports(const DeltaMemoryPassArgs& args);

// q, k, v, log_decay and beta of args.rule, and the plan of its chunks. Windows are read, not
// moved. A row of q and k is as args.rule has it where its segment has one entry, or else f16, in
// the first half of the row's memory.
void PrepareDeltaStreams(Device& device, const DeltaMemoryPassArgs& args,
                         const DeltaChunkPlan& plan);

}  // namespace mneme::cuda::matrix_memory::chunked
