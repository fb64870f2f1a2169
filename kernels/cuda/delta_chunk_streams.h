// What runs ahead of the chunked gated delta rule in a DeltaMemoryPass.
#pragma once

#include "kernels/cuda/delta_chunk_plan.h"
#include "kernels/cuda/device.h"
#include "kernels/kernels.h"

namespace mneme::cuda {

bool DeltaStreamsSupported(const DeltaMemoryPassArgs& args);

// q, k, v, log_decay and beta of args.rule, and the plan of its chunks. Windows are read, not
// moved. A row of q and k is as args.rule has it where its segment has one entry, or else f16, in
// the first half of the row's memory.
void PrepareDeltaStreams(Device& device, const DeltaMemoryPassArgs& args,
                         const DeltaChunkPlan& plan);

}  // namespace mneme::cuda
