// Products of a decode step's rows: all of a call go in one launch of the kernel that multiplies
// fused steps (decode/batch/product.cu).
#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/decode/batch/batch.h"
#include "kernels/cuda/linear/batch.h"
#include "kernels/cuda/linear/step.h"

namespace mneme::cuda::linear {
namespace {

using decode::batch::kMaxManyChoices;
using decode::batch::kMaxManyProducts;
using decode::batch::LaunchManyProducts;
using decode::batch::ManyEpilogue;
using decode::batch::ManyProduct;
using decode::batch::ManyProducts;
using decode::batch::StoresActivated;

constexpr int kFeatures = 8;  // of a piece that the kernel fetches

void Add(const LinearArgs& args, const void* rounded, ManyProducts& list) {
  ManyProduct& product = list.products[list.count];
  product.x = static_cast<const __nv_bfloat16*>(rounded);
  product.y = args.y.data;
  product.bf16_y = args.y.dtype == DType::kBF16;
  product.bias = args.bias.as<const float>();
  product.in_features = args.weights[0].in_features;
  product.out_features = args.weights[0].out_features;
  product.first_weight = list.count;
  product.all_rows = 1;
  product.columns = 1;
  list.weights[list.count++] = static_cast<const __nv_bfloat16*>(args.weights[0].data);
}

}  // namespace

bool TakesStep(const Device& device, std::span<const PackedMatrix> weights, int64_t rows) {
  return HasHopperCode(device) && weights.size() == 1 && weights[0].dtype == DType::kBF16 &&
         weights[0].in_features % kFeatures == 0 && IsAligned(weights[0]) &&
         rows <= kMaxManyChoices;
}

void LinearStep(Device& device, LinearProducts products, std::span<const void* const> rounded) {
  std::vector<bool> done(products.size(), false);
  for (size_t first = 0; first < products.size(); ++first) {
    if (done[first]) continue;
    const LinearArgs& args = *products[first];
    ManyProducts list = {};
    list.rows = static_cast<int>(args.y.shape[0]);
    for (size_t i = first; i < products.size() && list.count < kMaxManyProducts; ++i) {
      const LinearArgs& other = *products[i];
      const bool alike = other.y.shape[0] == list.rows;
      // A product that adds to y is launched by itself.
      if (done[i] || !alike || (i > first && (args.accumulate || other.accumulate))) continue;
      Add(other, rounded[i], list);
      done[i] = true;
    }
    LaunchManyProducts(device, list, args.accumulate ? ManyEpilogue::kAdd : ManyEpilogue::kStore);
  }
}

bool ActivatedStep(Device& device, std::span<const ActivatedProduct> products) {
  if (products.empty() || products.size() > size_t{kMaxManyProducts}) return false;
  ManyProducts list = {};
  list.rows = static_cast<int>(products[0].product.y.shape[0]);
  for (const auto& [args, activation] : products) {
    const bool whole = args.y.dtype == DType::kF32 || args.weights[0].out_features % 4 == 0;
    if (args.accumulate || args.y.shape[0] != list.rows || args.x.dtype != DType::kBF16 || !whole ||
        !StoresActivated(activation)) {
      return false;
    }
    Add(args, args.x.data, list);
    list.products[list.count - 1].activation = activation;
  }
  LaunchManyProducts(device, list, ManyEpilogue::kStore);
  return true;
}

}  // namespace mneme::cuda::linear
