// Matrix memories in chunks: segments of more than one entry, on tensor cores.
#pragma once

#include "kernels/cuda/common/device.h"
#include "kernels/cuda/matrix_memory/chunked/plan.h"
#include "kernels/kernels.h"

namespace mneme::cuda::matrix_memory::chunked {

// Any rule that has a chunked form. Supports() says which sizes of the delta rule without decay or
// with one of heads. On Hopper alone: no correction, with any decay, for key sizes 64, 128, 256 and
// 512, those that read before the write with decays of keys; with decays of keys also the delta
// rule, for key sizes 64, 128 and 256, and the general correction, for 64 and 128. Values as there,
// those with decays of their own in multiples of 64; matrices of f32 or f16.
bool SupportsRule(const Device& device, const MatrixMemoryArgs& args);

// Products of factors rounded to bf16 (the delta rule without decays of keys: f16), sums and
// matrices in f32. Memories have no pending writes (they were settled). Leaves segments of at most
// one entry alone.
void MatrixChunks(Device& device, const MatrixMemoryArgs& args);

// The gated delta rule alone; log_decay may be empty: no decay.
//
// True for key sizes 64, 128 and 256 and value sizes that are multiples of 16, from compute
// capability 8.0 on, unless keys may be long: f16 holds a row of a memory by a bound that grows
// with its values alone. Everything else has to go token by token.
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
