// Selective state spaces: kernels/ops/scan.h says what they compute.
#pragma once

#include "kernels/cuda/common/device.h"
#include "kernels/kernels.h"
#include "kernels/recurrent_steps.h"

namespace mneme::cuda::scan {

// Up to 64 tokens of a segment go one by one, its channels side by side; how they are split over
// calls changes no bit. Of few states, longer segments go in chunks of as many, side by side, too.
// Which other segments there are changes no bit.
void SelectiveScan(Device& device, const SelectiveScanArgs& args);
void Discretize(Device& device, const DiscretizeArgs& args);

// scan/mamba2_step.cu: for 64, 128 or 256 states.
bool Mamba2LayerStep(Device& device, const Mamba2LayerStepArgs& layer);
// scan/mamba2_output.cu
bool Mamba2Output(Device& device, const Mamba2OutputArgs& args);

}  // namespace mneme::cuda::scan
