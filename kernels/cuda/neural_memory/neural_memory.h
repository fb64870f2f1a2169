// Neural memories: kernels/ops/neural_memory.h says what they compute.
#pragma once

#include "kernels/cuda/common/device.h"
#include "kernels/kernels.h"

namespace mneme::cuda::neural_memory {

// How tokens are split over calls changes no bit, nor do other segments' values. Of more segments
// each head is divided among fewer blocks of threads, which add up in another order.
void NeuralMemory(Device& device, const NeuralMemoryArgs& args);
void KeepGate(Device& device, const KeepGateArgs& args);
void ChunkMean(Device& device, const ChunkMeanArgs& args);
void ChunkPool(Device& device, const ChunkPoolArgs& args);
// A warp for each token.
void Surprise(Device& device, const SurpriseArgs& args);

}  // namespace mneme::cuda::neural_memory
