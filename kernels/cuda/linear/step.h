// Products of a decode step's rows with activations behind them.
#pragma once

#include <span>

#include "kernels/cuda/common/device.h"
#include "kernels/recurrent_steps.h"

namespace mneme::cuda::linear {

// One launch for all, behind which a kernel starts only after all before it have ended. False: not
// on this device or of these shapes, nothing was done.
bool ActivatedProducts(Device& device, std::span<const ActivatedProduct> products);
// The same of products that TakesStep.
bool ActivatedStep(Device& device, std::span<const ActivatedProduct> products);

}  // namespace mneme::cuda::linear
