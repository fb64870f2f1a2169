// Memories of one or two products whose W and S stay on chip while tokens go through them:
// neural_memory.cu chooses.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/device.h"
#include "kernels/kernels.h"

namespace mneme::cuda::neural_memory {

// How a head of a segment is divided among the blocks of a cluster.
struct ResidentPlan {
  int blocks = 0;            // of a cluster; 0: the operation is not one of these
  int held = 0;              // rows of a matrix that a thread has, at most
  int tokens = 0;            // that go through the network at once
  int64_t shared_bytes = 0;  // of a block
};

// resident/one_token.cu: steps of one token, the memory read after it.
// The more heads and segments there are, the fewer are the blocks of each, unless `blocks` says.
ResidentPlan PlanOneTokenSteps(const Device& device, const NeuralMemoryArgs& args, int blocks = 0);
void LaunchOneTokenSteps(Device& device, const NeuralMemoryArgs& args, const ResidentPlan& plan);

// resident/several_tokens.cu: steps of several tokens, likewise.
ResidentPlan PlanSeveralTokenSteps(const Device& device, const NeuralMemoryArgs& args,
                                   int blocks = 0);
void LaunchSeveralTokenSteps(Device& device, const NeuralMemoryArgs& args,
                             const ResidentPlan& plan);

}  // namespace mneme::cuda::neural_memory
