// Any neural memory, a block of threads for each head of a segment: general.cu.
#pragma once

#include "kernels/cuda/common/device.h"
#include "kernels/kernels.h"

namespace mneme::cuda::neural_memory {

void LaunchGeneral(Device& device, const NeuralMemoryArgs& args);

}  // namespace mneme::cuda::neural_memory
