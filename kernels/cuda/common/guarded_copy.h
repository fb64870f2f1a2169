#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cuda/common/device.h"

namespace mneme::cuda {

// Backend::CopyGuarded. A block of threads takes a piece: pieces of like sizes go fastest.
void CopyGuarded(Device& device, void* dst, const void* src, const GuardedPiece* pieces,
                 int64_t count);

}  // namespace mneme::cuda
