// Chooses the kernels of a neural memory.
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/row.h"
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

bool FusedToken(Device& device, std::span<const MemoryStream> streams,
                const NeuralMemoryArgs& memory, const HeldSteps& held, bool settled,
                const MemoryAnswer& answer) {
  const auto launch = [&](const NeuralMemoryOutputArgs* output) {
    return resident::LaunchFused(device, memory, streams, held, settled, output);
  };
  if (answer.output == nullptr || !launch(answer.output)) return launch(nullptr);
  const SurpriseArgs& surprise = answer.output->surprise;
  const LinearArgs* const products[] = {&answer.product};
  const auto of_tokens =
      surprise.surprise.empty() ? SurpriseOfTokens{} : SurpriseOfTokens(surprise);
  if (!linear::LinearRow(device, products, of_tokens)) {
    if (!surprise.surprise.empty()) Surprise(device, surprise);
    linear::Linear(device, {&answer.product, 1});
  }
  *answer.done = true;
  return true;
}

bool NeuralMemoryStep(Device& device, const NeuralMemoryStepArgs& args) {
  if (FusedToken(device, args.streams, args.memory, {}, /*settled=*/false, {})) return true;
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
