// Copies of as many rows of activations as there turn out to be.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/device.h"
#include "kernels/tensor_view.h"

namespace mneme::cuda::linear {

// RoundActivations() of the first rows of x, [most, in_features]: `rows`, in device memory, has
// their number. Null: all.
void RoundRows(Device& device, const TensorView& x, const int32_t* rows, DType dtype, int terms,
               void* rounded);

}  // namespace mneme::cuda::linear
