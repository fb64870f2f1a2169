// Parts of a decode step as fused operations, and the steps of a layer that prompts fuse, too:
// kernels/decode_step.h and kernels/kernels.h say what they compute.
#pragma once

#include <memory>
#include <span>

#include "kernels/cuda/common/device.h"
#include "kernels/kernels.h"

namespace mneme::cuda::decode {

// One and two rows, bf16 weights, on Hopper: all layers in one kernel.
namespace stack {
std::unique_ptr<DecodeProgram> CompileDecode(Device& device, std::span<const DecodeLayer> layers,
                                             const DecodeHead* head);
}  // namespace stack

// More rows, and shapes that it does not take, if products may round activations: some
// launches for a layer.
namespace batch {
bool DeltaMixerStep(Device& device, const DeltaMixerStepArgs& args);
bool FeedForwardStep(Device& device, const FeedForwardStepArgs& args);
// Rows of prompts, too. bf16 routers and outputs, on Hopper.
bool NormAndRoute(Device& device, const RmsNormArgs& norm, const PackedMatrix& router,
                  const RouteTopKArgs& route);
}  // namespace batch

}  // namespace mneme::cuda::decode
