// EngramReadStep: kernels/layer_norm_step.h says what it computes.
#pragma once

#include "kernels/cuda/common/device.h"
#include "kernels/layer_norm_step.h"

namespace mneme::cuda::engrams {

// One and two rows, weights, keys and values of bf16, heads of up to 64 columns and residuals of
// up to 1,024. False: not with these.
bool EngramReadStep(Device& device, const EngramReadStepArgs& args);

}  // namespace mneme::cuda::engrams
