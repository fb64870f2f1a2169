// Compares the kernels of the gated delta rule with float64 on the host, without a test framework,
// so that it runs where only the CUDA toolkit is.
#pragma once

#include "kernels/cuda/common/device.h"

namespace mneme {

// Prints a line per shape, dtype and tile; false if an error is larger than it may be.
bool CheckDeltaRule(cuda::Device& device);

// cuda_delta_rule_drift.cu: prints how far outputs and matrices are from float64 after thousands of
// tokens, for each way to store a matrix.
void PrintDeltaRuleDrift(cuda::Device& device);

}  // namespace mneme
