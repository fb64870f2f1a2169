// Matrix memories on a GPU against float64 on the host.
#pragma once

#include "kernels/cuda/common/device.h"

namespace mneme {

// Every rule, ragged segments, each way to store a matrix and each way to deal out rows. Prints
// what was wrong; false if anything was.
bool CheckMatrixMemories(cuda::Device& device);

}  // namespace mneme
