// Which gated delta rules GatedDeltaChunks (operations.h) can do. Free of Abseil.
#pragma once

#include "kernels/cuda/delta_chunk_plan.h"
#include "kernels/cuda/device.h"
#include "kernels/kernels.h"

namespace mneme::cuda {

// True for key sizes 64, 128 and 256 and value sizes that are multiples of 16, from compute
// capability 8.0 on. Everything else has to go token by token.
bool GatedDeltaChunksSupported(const Device& device, const GatedDeltaRuleArgs& args);

// GatedDeltaChunks in parts, for those who plan the chunks themselves: takes Device::Scratch for
// the plan (false: there is none, and the device knows); then, when a kernel has planned, the rest.
// With `half_keys` the rows of q and k are as delta_chunk_streams.h says.
bool TakeDeltaChunkPlan(Device& device, const GatedDeltaRuleArgs& args, DeltaChunkPlan* plan);
void RunDeltaChunks(Device& device, const GatedDeltaRuleArgs& args, const DeltaChunkPlan& plan,
                    bool half_keys);

}  // namespace mneme::cuda
