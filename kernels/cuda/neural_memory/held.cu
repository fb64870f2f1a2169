// Chooses the kernels of a neural memory that holds steps back.
#include "kernels/cuda/matrix_memory/matrix_memory.h"
#include "kernels/cuda/neural_memory/held.h"
#include "kernels/cuda/neural_memory/neural_memory.h"

namespace mneme::cuda::neural_memory {

bool HeldMemory(Device& device, const HeldMemoryArgs& args) {
  const NeuralMemoryArgs& memory = args.memory;
  if (!args.always_holds && resident::TakesHeld(device, args) &&
      FusedToken(device, args.streams, memory, args.held, args.settled, args.answer)) {
    return true;
  }
  bool launched = false;
  if (!args.streams.empty() && !matrix_memory::LaunchStreams(device, args.streams, memory.segments,
                                                             &launched, args.settled)) {
    return false;
  }
  if (memory.segments.count == 0 || memory.q.shape[0] == 0) return true;
  const bool longer = memory.segments.longest != 1;
  if (!resident::TakesHeld(device, args)) {
    SettleSegments(device, args, /*longer_than=*/0);
    NeuralMemory(device, memory);
    return true;
  }
  if (longer) {
    SettleSegments(device, args, /*longer_than=*/1);
    resident::LaunchLonger(device, memory);
  }
  resident::LaunchHeld(device, args, /*early=*/launched && !longer);
  return true;
}

}  // namespace mneme::cuda::neural_memory
