// The chunked gated delta rule: segments of more than one entry, on tensor cores.
#pragma once

#include "kernels/cuda/common/device.h"
#include "kernels/cuda/matrix_memory/chunked/plan.h"
#include "kernels/kernels.h"

namespace mneme::cuda::matrix_memory::chunked {

// True for key sizes 64, 128 and 256 and value sizes that are multiples of 16, from compute
// capability 8.0 on. Everything else has to go token by token.
bool Supports(const Device& device, const MatrixMemoryArgs& args);

// Memories have no pending writes (they were settled). Leaves segments of at most one entry alone.
void GatedDeltaChunks(Device& device, const MatrixMemoryArgs& args);

// The same in parts, for those who plan the chunks themselves: takes Device::Scratch for
// the plan (false: there is none, and the device knows); then, when a kernel has planned, the rest.
// With `half_keys` the rows of q and k are as matrix_memory/chunked/streams.h says.
bool TakeDeltaChunkPlan(Device& device, const MatrixMemoryArgs& args, DeltaChunkPlan* plan);
void RunDeltaChunks(Device& device, const MatrixMemoryArgs& args, const DeltaChunkPlan& plan,
                    bool half_keys);

}  // namespace mneme::cuda::matrix_memory::chunked
