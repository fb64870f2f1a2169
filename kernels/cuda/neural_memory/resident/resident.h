// Memories of one or two products whose W and S stay on chip while tokens go through them.
#pragma once

#include "kernels/cuda/common/device.h"
#include "kernels/kernels.h"
#include "kernels/stream_steps.h"

namespace mneme::cuda::neural_memory::resident {

// False: the operation is not one that these kernels take, and nothing was done. A cluster of
// `blocks` has a head of a segment; 0: the fewer, the more heads and segments there are. `early`:
// as NeuralMemory() has it.
bool Launch(Device& device, const NeuralMemoryArgs& args, int blocks = 0, bool early = false);

// The same of GatedMemory(): of steps of several tokens.
bool LaunchGated(Device& device, const GatedMemoryArgs& args);

}  // namespace mneme::cuda::neural_memory::resident
