// Products of which some entries keep what they have.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/batch.h"

namespace mneme::cuda::linear {

// The entries that a product is of: all, or those at positions from the first one on.
struct FromPosition {
  const int64_t* positions = nullptr;  // [entries]
  int64_t first = 0;
};
void LinearFewRows(Device& device, LinearProducts products, DType dtype, bool aligned,
                   const FromPosition& from);
// Whether blocks stay for a product alone in its call, of one row: those of a large head.
bool IsWide(const PackedMatrix& weights);

}  // namespace mneme::cuda::linear
