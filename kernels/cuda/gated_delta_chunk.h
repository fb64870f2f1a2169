// Which gated delta rules GatedDeltaChunks (operations.h) can do. Free of Abseil.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/kernels.h"

namespace mneme::cuda {

// True for key sizes 64, 128 and 256 and value sizes that are multiples of 16, from compute
// capability 8.0 on. Everything else has to go token by token.
bool GatedDeltaChunksSupported(const Device& device, const GatedDeltaRuleArgs& args);

}  // namespace mneme::cuda
