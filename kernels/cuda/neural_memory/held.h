// Memories that hold steps back (kernels/held_steps.h).
#pragma once

#include "kernels/cuda/common/device.h"
#include "kernels/held_steps.h"

namespace mneme::cuda::neural_memory {

bool HeldMemory(Device& device, const HeldMemoryArgs& args);
void SettleNetwork(Device& device, const SettleNetworkArgs& args);

// The same of segments of more than `longer_than` tokens, which are still to come. After it nothing
// is held back of these, sessions at their first position included.
void SettleSegments(Device& device, const HeldMemoryArgs& args, int longer_than);

namespace resident {

// Segments of one token, and the others, of which nothing is held back. `early`
// as NeuralMemory() has it. Only where TakesHeld().
bool TakesHeld(const Device& device, const HeldMemoryArgs& args);
void LaunchHeld(Device& device, const HeldMemoryArgs& args, bool early);
void LaunchLonger(Device& device, const NeuralMemoryArgs& args);

}  // namespace resident

}  // namespace mneme::cuda::neural_memory
