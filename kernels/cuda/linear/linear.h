// Products with matrices of weights: everything between "a few rows, bound by weight bytes" and
// "many rows, tensor cores". kernels/kernels.h says what they compute.
#pragma once

#include <span>

#include "kernels/cuda/common/device.h"
#include "kernels/kernels.h"
#include "kernels/layer_norm_step.h"

namespace mneme::cuda::linear {

void Linear(Device& device, std::span<const LinearArgs> products);
// See Backend::product_dtype, step_output_dtype and output_dtype.
bool RoundsActivations(const Device& device, const PackedMatrix& weights, int64_t rows);
bool RoundsStepOutputs(const Device& device, const PackedMatrix& weights, int64_t rows);
bool RoundsOutputs(const Device& device, std::span<const PackedMatrix> weights, int64_t rows);
bool SwiGluProduct(Device& device, const SwiGluProductArgs& args);
// Steps of so few rows that the weights' bytes count alone, fp32 throughout: one launch each.
bool NormedRows(Device& device, const NormedProductsStepArgs& args);
bool AddToFewRows(Device& device, const ResidualProductStepArgs& args);

}  // namespace mneme::cuda::linear
