// Chooses the kernels of a neural memory that holds steps back.
#include "kernels/cuda/matrix_memory/matrix_memory.h"
#include "kernels/cuda/neural_memory/held.h"
#include "kernels/cuda/neural_memory/neural_memory.h"

namespace mneme::cuda::neural_memory {

HeldMemoryDone HeldMemory(Device& device, const HeldMemoryArgs& args) {
  const NeuralMemoryArgs& memory = args.memory;
  const bool longer = memory.segments.longest != 1;
  const bool any = memory.segments.count > 0 && memory.q.shape[0] > 0;
  const bool takes = any && resident::TakesHeld(device, args);
  if (takes && !longer && args.output != nullptr && resident::LaunchHeldLayer(device, args)) {
    if (!args.output->surprise.surprise.empty()) Surprise(device, args.output->surprise);
    return HeldMemoryDone::kAll;
  }
  bool launched = false;
  if (!args.streams.empty() && !matrix_memory::LaunchStreams(device, args.streams, memory.segments,
                                                             &launched, args.settled)) {
    return HeldMemoryDone::kNothing;
  }
  if (!any) return HeldMemoryDone::kMemory;
  if (!takes) {
    SettleSegments(device, args, /*longer_than=*/0);
    NeuralMemory(device, memory);
    return HeldMemoryDone::kMemory;
  }
  if (longer) {
    SettleSegments(device, args, /*longer_than=*/1);
    resident::LaunchLonger(device, memory);
  }
  resident::LaunchHeld(device, args, /*early=*/launched && !longer);
  return HeldMemoryDone::kMemory;
}

}  // namespace mneme::cuda::neural_memory
