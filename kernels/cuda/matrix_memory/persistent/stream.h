// One token for each of so many memories that the device's blocks walk over them: the tile kStream
// of decode::LaunchDecode().
#pragma once

#include "kernels/cuda/matrix_memory/launch.h"

namespace mneme::cuda::matrix_memory::persistent {

bool Supports(const Problem& problem, DType state_dtype);
void Launch(Device& device, Problem problem, DType state_dtype);

}  // namespace mneme::cuda::matrix_memory::persistent
