// Products of one or two rows, all of a step's weights on their way before the rows are there.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/common/device.h"
#include "kernels/cuda/linear/batch.h"
#include "kernels/cuda/neural_memory/surprise.cuh"
#include "kernels/layer_norm_step.h"

namespace mneme::cuda::linear {

// y = W x (+ bias), or added to y; with `up` silu(W x (+ bias)) * (up x (+ up_bias)).
struct RowProduct {
  PackedMatrix weights, up;
  const float *bias = nullptr, *up_bias = nullptr;
  float* y = nullptr;  // [rows, out_features]
  bool accumulate = false;
};
struct RowArgs {
  const float* x = nullptr;     // [rows, in_features]
  const float* norm = nullptr;  // [in_features]: products are of RmsNorm(x); or null
  float eps = 0;
  int rows = 1;
  std::span<const RowProduct> products;  // one at least, at most kMaxLinearProducts
  // Found beside them.
  neural_memory::SurpriseOfTokens surprise = {};
};

// False: not products that the kernel takes, and nothing was done. The sums of an output have the
// same order whatever the number of rows.
bool LaunchRow(Device& device, const RowArgs& args);

// Those of a call that LaunchRow() takes: all of them, or none.
bool LinearRow(Device& device, LinearProducts products,
               const neural_memory::SurpriseOfTokens& surprise = {});

// The same of SwiGluProduct().
bool SwiGluRow(Device& device, const SwiGluProductArgs& args);

// The same of products of RmsNorm.
bool NormedRow(Device& device, const NormedProductsStepArgs& args);

}  // namespace mneme::cuda::linear
