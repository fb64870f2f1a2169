// Which row of a ragged batch a token belongs to.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/device_utils.cuh"

namespace mneme::cuda {

// The last of `rows` rows that begins at `token` or before it; offsets: [rows + 1], of tokens.
__device__ inline int RowAt(const int32_t* offsets, int rows, int token) {
  int low = 0, high = rows;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (offsets[middle] <= token ? low : high) = middle;
  }
  return low;
}

}  // namespace mneme::cuda
