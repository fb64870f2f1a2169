// Compares the kernels of the gated delta rule with float64 on the host, without a test framework,
// so that it runs where only the CUDA toolkit is.
#pragma once

#include "kernels/cuda/device.h"

namespace mneme {

// Prints a line per shape, dtype and tile; false if an error is larger than it may be.
bool CheckDeltaRule(cuda::Device& device);

}  // namespace mneme
