// Memories of one matrix that are read ahead, and hold the gradients of a step's tokens back.
#pragma once

#include "kernels/cuda/neural_memory/resident/head.cuh"
#include "kernels/held_steps.h"

namespace mneme::cuda::neural_memory::resident {

// Whether LaunchHeldAhead() takes such memories.
bool TakesHeldAhead(const HeldMemoryArgs& args);
// Segments of one token; others are left alone. `momenta` of `p` are the gradients, and its
// division is that of one block.
void LaunchHeldAhead(Device& device, const Params& p, const HeldMemoryArgs& args);

}  // namespace mneme::cuda::neural_memory::resident
