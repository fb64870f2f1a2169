// How the rows of a matrix memory are stored.
#pragma once

#include <cstdint>

#include "kernels/tensor_view.h"

namespace mneme {

// A row [key_dim] of kF32, kF16 or kF64 is its elements. A row of kI8 is integers from -127 to 127,
// zeros up to a multiple of 4 bytes, and the f32 that the integers are to be multiplied by: the
// row's largest magnitude / 127. The scales are those of rows, not of columns, because sums go
// along rows, and because a token adds a multiple of one key to each: rows are as large as the
// values that they recall, which differ, while the elements of keys are alike.
//
// Returns the elements of `dtype` from one row to the next.
constexpr int64_t StateRowPitch(DType dtype, int64_t key_dim) {
  return dtype == DType::kI8 ? (key_dim + 3) / 4 * 4 + static_cast<int64_t>(sizeof(float))
                             : key_dim;
}

}  // namespace mneme
