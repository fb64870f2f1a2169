// A last look at weights before they are used.
#pragma once

#include "kernels/tensor_view.h"

namespace mneme {

// Whether a tensor in host memory, of a floating type, holds no NaN and no infinity. Integers
// always pass. Reads at memory speed on the calling thread.
bool AllFinite(const TensorView& tensor);

}  // namespace mneme
