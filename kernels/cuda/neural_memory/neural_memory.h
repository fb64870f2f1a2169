// Neural memories: kernels/ops/neural_memory.h says what they compute.
#pragma once

#include <span>

#include "kernels/cuda/common/device.h"
#include "kernels/held_steps.h"
#include "kernels/kernels.h"
#include "kernels/stream_steps.h"

namespace mneme::cuda::neural_memory {

// How tokens are split over calls changes no bit, nor do other segments' values; but tokens of a
// segment that are taken together under an anchor are added up by window
// (resident/anchored_windows.cu). Of more segments each head is divided among fewer blocks of
// threads, which add up in another order, too. `early`: the kernel ahead of it lets its successor
// start only after all before it have ended, so that state, segments and positions may be read
// while it still runs.
void NeuralMemory(Device& device, const NeuralMemoryArgs& args, bool early = false);
// The streams as one kernel, then the memory.
bool NeuralMemoryStep(Device& device, const NeuralMemoryStepArgs& args);
// The streams, the memory and what `answer` wants of it, of one token of each of few segments.
// False: not what its kernel takes, and nothing was done.
bool FusedToken(Device& device, std::span<const MemoryStream> streams,
                const NeuralMemoryArgs& memory, const HeldSteps& held, bool settled,
                const MemoryAnswer& answer);
bool GatedMemory(Device& device, const GatedMemoryArgs& args);
void KeepGate(Device& device, const KeepGateArgs& args);
void ChunkMean(Device& device, const ChunkMeanArgs& args);
void ChunkPool(Device& device, const ChunkPoolArgs& args);
// A warp for each token.
void Surprise(Device& device, const SurpriseArgs& args);
bool NeuralMemoryOutput(Device& device, const NeuralMemoryOutputArgs& args);

}  // namespace mneme::cuda::neural_memory
