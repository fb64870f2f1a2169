// How Linear() describes products to its kernels: several products, each of one or more groups, in
// one launch, by value in the kernel's parameters.
//
// Each path has a function that takes products of one weight dtype. `aligned` says that every row
// of weights and of x starts on 16 bytes and holds a whole number of 16-byte pieces (of 8 features
// if the weights are 16-bit, else of 4).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/common/device.h"
#include "kernels/kernels.h"

namespace mneme::cuda::linear {

enum : int { kMaxLinearProducts = 8, kMaxLinearWeights = 64 };

struct LinearProduct {
  const void* x;              // [rows, in_features], f32 or its 16-bit copy
  float* y;                   // [entries, out_features]; bf16 if `rounds` or `gated`
  const int32_t* entry_rows;  // null: row(e) = e
  const int32_t* group_ends;  // group_offsets + 1; null: one group of all entries
  const float* bias;  // [groups, out_features] or null; of few_rows.cu, step.cu, warpgroups.cu
  int rows;           // of x
  int entries;
  int in_features;
  int out_features;
  int groups;
  int first_weight;  // of LinearBatch::weights
  int first_block;   // of the launch
  int accumulate;
  int rounds;
  int gated;  // y = silu(W0 x) * (W1 x): two weights, one group
};

struct LinearBatch {
  int count = 0, weight_count = 0;
  LinearProduct products[kMaxLinearProducts];
  const void* weights[kMaxLinearWeights];
};

// A SwiGluProduct among the products: the only ungrouped ones with two weights, gate and up.
inline bool IsGated(const LinearArgs& args) {
  return args.group_offsets.empty() && args.weights.size() == 2;
}

// A bound on the entries of a group that costs no look at the device: rows of x may repeat in a
// group, but seldom do, and kernels are right if they do.
int64_t LikelyEntriesPerGroup(const LinearArgs& args);

// Tiles of `size` entries that do not span groups: at most this many.
int64_t EntryTileBound(const LinearArgs& args, int64_t size);

// As many of the first products as fit one launch; takes them off `products`.
// `blocks(args)` is the number of thread blocks that a product needs; *total their sum.
template <typename Blocks>
LinearBatch TakeBatch(std::span<const LinearArgs* const>* products, int* total,
                      const Blocks& blocks, int max_weights = kMaxLinearWeights) {
  LinearBatch batch;
  int weights = 0;
  int64_t first_block = 0;
  while (!products->empty() && batch.count < kMaxLinearProducts) {
    const LinearArgs& args = *products->front();
    const int matrices = static_cast<int>(args.weights.size());
    if (weights + matrices > max_weights) break;
    LinearProduct& product = batch.products[batch.count++];
    product.x = args.x.data;
    product.y = args.y.as<float>();
    product.entry_rows = args.entry_rows.as<int32_t>();
    product.group_ends =
        args.group_offsets.empty() ? nullptr : args.group_offsets.as<int32_t>() + 1;
    product.bias = args.bias.as<const float>();
    product.rows = static_cast<int>(args.x.shape[0]);
    product.entries = static_cast<int>(args.y.shape[0]);
    product.in_features = args.weights[0].in_features;
    product.out_features = args.weights[0].out_features;
    product.groups = IsGated(args) ? 1 : matrices;
    product.first_weight = weights;
    product.first_block = static_cast<int>(first_block);
    product.accumulate = args.accumulate;
    product.rounds = args.y.dtype == DType::kBF16;
    product.gated = IsGated(args);
    for (const PackedMatrix& matrix : args.weights) batch.weights[weights++] = matrix.data;
    first_block += blocks(args);
    *products = products->subspan(1);
  }
  batch.weight_count = weights;
  *total = static_cast<int>(first_block);
  return batch;
}

using LinearProducts = std::span<const LinearArgs* const>;

// linear/few_rows.cu: weights stream from memory once, whatever else; fp32 throughout.
void LinearFewRows(Device& device, LinearProducts products, DType dtype, bool aligned);
// linear/step.cu: the rows of a decode step, bf16 on Hopper: all products in one launch. For
// ungrouped ones that TakesStep.
bool TakesStep(const Device& device, std::span<const PackedMatrix> weights, int64_t rows);
void LinearStep(Device& device, LinearProducts products, std::span<const void* const> rounded);
// linear/tiles.cu: many rows on tensor cores, x in `terms` copies of the weights' 16-bit dtype,
// which add up to it: `rounded` has the first of each product, the others follow it. For aligned
// products.
void LinearTiles(Device& device, LinearProducts products, DType dtype, int terms,
                 std::span<const void* const> rounded);
// linear/warpgroups.cu: the same on Hopper, from about eight rows on. `shape`: entries
// of a tile, its warpgroups, of 64 output features each, and stages of the ring; {} to choose.
struct WarpgroupShape {
  int entries = 0, warpgroups = 0, stages = 0;
};
void LinearWarpgroups(Device& device, LinearProducts products, DType dtype, int terms,
                      std::span<const void* const> rounded, WarpgroupShape shape = {});
// linear/narrow.cu: the same of products that IsNarrow, `rounded` in one copy.
bool IsNarrow(const PackedMatrix& weights);
void LinearNarrow(Device& device, LinearProducts products, DType dtype,
                  std::span<const void* const> rounded);
// linear/bulk.cu: many rows on Hopper, products of at most kMaxBulkGroups groups whose output
// features are a multiple of kBulkOutputPiece. The only one whose outputs may be bf16. Tiles of
// kBulkNarrow or kBulkWide output features, 0 to choose.
enum : int { kMaxBulkGroups = 32, kBulkOutputPiece = 8, kBulkNarrow = 128, kBulkWide = 256 };
void LinearBulk(Device& device, LinearProducts products, DType dtype, int terms,
                std::span<const void* const> rounded, int tile_outputs = 0);
// Writes such copies of x, which is f32.
void RoundActivations(Device& device, const TensorView& x, DType dtype, int terms, void* rounded);
// linear/blas.cu: one ungrouped product by cuBLAS; `rounded` is x in the weights' dtype.
void LinearBlas(Device& device, const LinearArgs& args, const void* rounded, void* workspace);
enum : int64_t { kLinearBlasWorkspaceBytes = int64_t{32} << 20 };
// linear/general.cu: tiles without tensor cores, fp32 throughout, any size.
void LinearGeneral(Device& device, LinearProducts products, DType dtype);

}  // namespace mneme::cuda::linear
