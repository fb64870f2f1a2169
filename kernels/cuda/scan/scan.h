// Selective state spaces: kernels/ops/scan.h says what they compute.
#pragma once

#include "kernels/cuda/common/device.h"
#include "kernels/kernels.h"

namespace mneme::cuda::scan {

// A segment's tokens go one by one, its channels side by side. Which other segments there are, and
// how tokens are split over calls, changes no bit.
void SelectiveScan(Device& device, const SelectiveScanArgs& args);
void Discretize(Device& device, const DiscretizeArgs& args);

}  // namespace mneme::cuda::scan
