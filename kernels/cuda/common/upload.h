#pragma once

#include <cstdint>

#include "kernels/cuda/common/device.h"

namespace mneme::cuda {

// Copies whole words from pinned memory.
void Upload(Device& device, void* to, const void* from, int64_t bytes);

}  // namespace mneme::cuda
