// Memories of one or two products whose W and S stay on chip while tokens go through them.
#pragma once

#include <span>

#include "kernels/cuda/common/device.h"
#include "kernels/held_steps.h"
#include "kernels/kernels.h"
#include "kernels/stream_steps.h"

namespace mneme::cuda::neural_memory::resident {

// False: the operation is not one that these kernels take, and nothing was done. A cluster of
// `blocks` has a head of a segment; 0: the fewer, the more heads and segments there are. `early`:
// as NeuralMemory() has it.
bool Launch(Device& device, const NeuralMemoryArgs& args, int blocks = 0, bool early = false);

// The same of GatedMemory(): of steps of several tokens.
bool LaunchGated(Device& device, const GatedMemoryArgs& args);

// Streams, memory and output of one token of each of few segments as one kernel: `settled` is of
// what streams write, too; nothing is held back afterwards. `output` but for its surprise, or null.
bool LaunchFused(Device& device, const NeuralMemoryArgs& memory,
                 std::span<const MemoryStream> streams, const HeldSteps& held, bool settled,
                 const NeuralMemoryOutputArgs* output);

}  // namespace mneme::cuda::neural_memory::resident
