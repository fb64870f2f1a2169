// Chooses the kernels of a neural memory.
#include "kernels/cuda/neural_memory/general.h"
#include "kernels/cuda/neural_memory/neural_memory.h"
#include "kernels/cuda/neural_memory/resident/resident.h"

namespace mneme::cuda::neural_memory {

void NeuralMemory(Device& device, const NeuralMemoryArgs& args) {
  if (args.segments.count == 0 || args.q.shape[0] == 0) return;
  if (resident::Launch(device, args)) return;
  LaunchGeneral(device, args);
}

}  // namespace mneme::cuda::neural_memory
