// One token of each of few segments from its projections to what the last product reads.
#pragma once

#include <span>

#include "kernels/cuda/neural_memory/resident/head.cuh"
#include "kernels/kernels.h"

namespace mneme::cuda::neural_memory::resident {

// `p` is of memories of two products and steps of one token, `memory` what it was made of; p.early
// is of what streams write, too. `output` but for its surprise, or null: none. False: not what the
// kernel takes, and nothing was done.
bool LaunchFusedToken(Device& device, const Params& p, const NeuralMemoryArgs& memory,
                      std::span<const MemoryStream> streams, const NeuralMemoryOutputArgs* output);

}  // namespace mneme::cuda::neural_memory::resident
