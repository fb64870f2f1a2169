// The kernels of the selective scan as scan/scan.cu launches them.
#pragma once

#include "kernels/cuda/common/device.h"
#include "kernels/cuda/scan/token.cuh"

namespace mneme::cuda::scan {

// States of a channel that a thread, or four, can hold.
constexpr int kFewStates = 16;

// scan/tokens.cu: segments of any length, of more states.
void LaunchTokens(Device& device, ScanParams params, DType output);
// scan/step.cu: segments of one entry at most, of few states.
void LaunchStep(Device& device, ScanParams params, DType output, bool in_fours);
// scan/chunks.cu: segments of any length, of few states.
void LaunchChunks(Device& device, ScanParams params, DType output, int entries);

}  // namespace mneme::cuda::scan
