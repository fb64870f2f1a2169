// Fused steps of networks with LayerNorm: kernels/layer_norm_step.h says what they compute.
#pragma once

#include "kernels/cuda/common/device.h"
#include "kernels/layer_norm_step.h"

namespace mneme::cuda::decode {

// One and two rows on any GPU, up to 256 on Hopper where products may round activations.
bool NormedProductsStep(Device& device, const NormedProductsStepArgs& args);
bool ResidualProductStep(Device& device, const ResidualProductStepArgs& args);
// decode/normed_rows.cu: a block takes a row.
bool NormedConvolutionStep(Device& device, const NormedConvolutionStepArgs& args);
bool NormedGateStep(Device& device, const NormedGateStepArgs& args);

}  // namespace mneme::cuda::decode
