// Steps of networks with LayerNorm: one or two rows as one launch each; of more, on Hopper, the
// norm is a launch of its own, and products end with bias, activation and what they add to.
#include <cstdint>

#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/decode/batch/batch.h"
#include "kernels/cuda/decode/layer_norm_step.h"
#include "kernels/cuda/dense/dense.h"
#include "kernels/cuda/linear/batch.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/row.h"

namespace mneme::cuda::decode {
namespace {

using batch::kMaxManyProducts;
using batch::LaunchManyProducts;
using batch::ManyEpilogue;
using batch::ManyProduct;
using batch::ManyProducts;

// More rows go to cuBLAS, product by product.
constexpr int64_t kMostRows = 256;

// Whether the tensor cores' kernels take a product of so many rows.
bool Takes(const Device& device, const StepProduct& product, int64_t rows) {
  const PackedMatrix& w = product.weights;
  return linear::RoundsActivations(device, w, rows) && linear::TakesStep(device, {&w, 1}, rows) &&
         w.out_features % 4 == 0;
}

// cuBLAS makes more of long sums of many rows, bias and all.
bool IsForBlas(const ResidualProductStepArgs& args) {
  constexpr int64_t kRows = 65;
  constexpr int kFeatures = 2048;
  return args.positions.empty() && args.hidden.shape[0] >= kRows &&
         args.product.weights.in_features >= kFeatures;
}

void Add(const __nv_bfloat16* x, const StepProduct& product, const TensorView& y,
         ManyProducts& list) {
  ManyProduct& added = list.products[list.count];
  added.x = x;
  added.y = y.data;
  added.bf16_y = y.dtype == DType::kBF16;
  added.bias = product.bias.as<const float>();
  added.out_features = product.weights.out_features;
  added.first_weight = list.count;
  added.all_rows = 1;
  added.columns = 1;
  list.weights[list.count++] = static_cast<const __nv_bfloat16*>(product.weights.data);
}

}  // namespace

bool NormedProductsStep(Device& device, const NormedProductsStepArgs& args) {
  if (!args.norm.centred) return linear::NormedRow(device, args);
  if (linear::NormedRows(device, args)) return true;
  const int64_t rows = args.hidden.shape[0], dim = args.hidden.shape[1];
  const bool gelu = args.activation == Activation::kGeluTanh;
  if (rows > kMostRows || args.products.size() > size_t{kMaxManyProducts} ||
      (!gelu && args.activation != Activation::kIdentity)) {
    return false;
  }
  for (const auto& [product, y] : args.products) {
    const bool stored = y.dtype == DType::kF32 || y.dtype == DType::kBF16;
    if (!stored || !Takes(device, product, rows) || !IsAligned(y)) return false;
  }
  auto* const x = static_cast<__nv_bfloat16*>(
      device.StepMemory(rows * dim * static_cast<int64_t>(sizeof(__nv_bfloat16))));
  if (x == nullptr) return true;  // the error is on record
  dense::LayerNorm(device, {.x = args.hidden,
                            .weight = args.norm.weight,
                            .bias = args.norm.bias,
                            .eps = args.norm.eps,
                            .y = {x, DType::kBF16, args.hidden.shape}});
  ManyProducts list = {};
  list.rows = static_cast<int>(rows);
  list.in_features = static_cast<int>(dim);
  for (const auto& [product, y] : args.products) {
    Add(x, product, y, list);
    list.products[list.count - 1].activation = args.activation;
  }
  LaunchManyProducts(device, list, ManyEpilogue::kActivate);
  return true;
}

bool ResidualProductStep(Device& device, const ResidualProductStepArgs& args) {
  if (linear::AddToFewRows(device, args)) return true;
  const int64_t rows = args.hidden.shape[0], dim = args.hidden.shape[1];
  if (rows < 1 || rows > kMostRows || dim % 64 != 0 || !Takes(device, args.product, rows) ||
      !AreAligned(args.x, args.hidden) || IsForBlas(args)) {
    return false;
  }
  auto* x = args.x.as<__nv_bfloat16>();
  if (args.x.dtype == DType::kF32) {
    x = static_cast<__nv_bfloat16*>(
        device.StepMemory(args.x.shape.elements() * static_cast<int64_t>(sizeof(__nv_bfloat16))));
    if (x == nullptr) return true;  // the error is on record
    linear::RoundActivations(device, args.x, DType::kBF16, 1, x);
  } else if (args.x.dtype != DType::kBF16) {
    return false;
  }
  ManyProducts list = {};
  list.rows = static_cast<int>(rows);
  list.in_features = args.product.weights.in_features;
  Add(x, args.product, args.hidden, list);
  list.products[0].positions = args.positions.as<const int64_t>();
  list.products[0].first_position = args.first;
  LaunchManyProducts(device, list, ManyEpilogue::kAdd);
  return true;
}

}  // namespace mneme::cuda::decode
