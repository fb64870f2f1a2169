// The way of one row into a gated feed-forward part.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/device.h"
#include "kernels/tensor_view.h"

namespace mneme::cuda::linear {

struct GatedRow {
  const float *hidden, *norm;  // [in_features]
  float eps = 0;
  PackedMatrix gate, up;  // bf16, aligned
  float* y = nullptr;     // [out_features]: silu(gate x) up x, x = RmsNorm(hidden)
};

// False: rows are too long for the kernel, and nothing was done.
bool LaunchGatedRow(Device& device, const GatedRow& args);

}  // namespace mneme::cuda::linear
