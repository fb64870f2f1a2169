// Chooses the kernels of a neural memory.
#include "kernels/cuda/matrix_memory/matrix_memory.h"
#include "kernels/cuda/neural_memory/general.h"
#include "kernels/cuda/neural_memory/neural_memory.h"
#include "kernels/cuda/neural_memory/resident/resident.h"

namespace mneme::cuda::neural_memory {

void NeuralMemory(Device& device, const NeuralMemoryArgs& args, bool early) {
  if (args.segments.count == 0 || args.q.shape[0] == 0) return;
  if (resident::Launch(device, args, /*blocks=*/0, early)) return;
  LaunchGeneral(device, args);
}

bool NeuralMemoryStep(Device& device, const NeuralMemoryStepArgs& args) {
  bool launched = false;
  if (!matrix_memory::LaunchStreams(device, args.streams, args.memory.segments, &launched)) {
    return false;
  }
  NeuralMemory(device, args.memory, /*early=*/launched);
  return true;
}

bool GatedMemory(Device& device, const GatedMemoryArgs& args) {
  const NeuralMemoryArgs& memory = args.memory;
  if (memory.segments.count == 0 || memory.q.shape[0] == 0 || memory.keep.empty()) return false;
  return resident::LaunchGated(device, args);
}

}  // namespace mneme::cuda::neural_memory
