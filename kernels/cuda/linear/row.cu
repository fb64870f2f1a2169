// Products of one or two rows. Such a step is a chain of short kernels, in which memory is idle
// unless weights come ahead of the rows: a block asks for all of its weights, in shared memory,
// before it waits for the kernel ahead of it, and holds few registers meanwhile, so that blocks of
// several kernels are on a multiprocessor at once. Each multiprocessor has as many weights as any
// other. A thread has a piece of a row, whose norm, if there is one, all blocks find.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/common/blocks.h"
#include "kernels/cuda/common/bulk_copy.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/linear/few_rows.h"
#include "kernels/cuda/linear/pieces.cuh"
#include "kernels/cuda/linear/row.h"

namespace mneme::cuda::linear {
namespace {

constexpr int kPiece = 8;
constexpr int kMostPieces = 512;  // of a row: threads
constexpr int kChunk = 8;         // outputs that are waited for together
constexpr int kMostOutputs = 64;  // of a block
constexpr int kMostBytes = 72 << 10;
constexpr int kMostRows = 2;

struct Product {
  const __nv_bfloat16 *weights, *up;  // up: null, or of gated outputs, half a chunk each
  const float *bias, *up_bias;
  float* y;
  int out_features, first_block;
  bool accumulate;
};
struct Rows {
  const float *x, *norm;
  float eps;
  int in_features, count;
  int outputs;         // of a block; of gated ones as many
  int row_warps;       // that a row is divided among
  int groups;          // of so many warps, each with some of the chunks
  int product_blocks;  // those behind them find what tokens' losses say of them
  Product products[kMaxLinearProducts];
  neural_memory::SurpriseOfTokens surprise;
};

// Output `i` of a block in its order of rows of weights, by chunks.
__device__ inline int PlaceOf(bool gated, int i) {
  constexpr int kUnits = kChunk / 2;
  return gated ? i / kUnits * kChunk + i % kUnits : i;
}

// Asks for a block's weights, chunk by chunk.
__device__ inline void Fetch(const Rows& p, const Product& product, int first, int count,
                             __nv_bfloat16* to, uint64_t* full) {
  const bool gated = product.up != nullptr;
  const int of_chunk = gated ? kChunk / 2 : kChunk;
#pragma unroll 1
  for (int c = 0; c * of_chunk < count; ++c) {
    const int units = min(of_chunk, count - c * of_chunk);
    const int64_t at = int64_t{first + c * of_chunk} * p.in_features;
    const uint32_t bytes = 2u * static_cast<uint32_t>(units * p.in_features);
    __nv_bfloat16* const chunk = to + c * kChunk * p.in_features;
    ArriveAndExpect(full + c, gated ? 2 * bytes : bytes);
    BulkLoadOnce(chunk, product.weights + at, bytes, full + c);
    if (gated) {
      BulkLoadOnce(chunk + of_chunk * p.in_features, product.up + at, bytes, full + c);
    }
  }
}

template <int kRows>
__global__ void __launch_bounds__(kMostPieces, 2) RowKernel(const __grid_constant__ Rows p) {
  extern __shared__ uint4 shared[];  // weights of the block's outputs, then sums of its warps
  __shared__ uint64_t full[2 * kMostOutputs / kChunk];
  __shared__ float squares[kRows][kMostPieces / kWarp];
  LetNextKernelStart();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  if (static_cast<int>(blockIdx.x) >= p.product_blocks) {
    WaitForPreviousKernel();
    const int warps = p.row_warps * p.groups;
    const int token = (static_cast<int>(blockIdx.x) - p.product_blocks) * warps + warp;
    return p.surprise.Find(token);
  }
  int n = 0;
  while (n + 1 < p.count && static_cast<int>(blockIdx.x) >= p.products[n + 1].first_block) ++n;
  const Product& product = p.products[n];
  const bool gated = product.up != nullptr;
  const int first = (static_cast<int>(blockIdx.x) - product.first_block) * p.outputs;
  const int count = min(p.outputs, product.out_features - first);
  const int chunks = (count * (gated ? 2 : 1) + kChunk - 1) / kChunk;
  if (thread == 0) {
#pragma unroll 1
    for (int c = 0; c < chunks; ++c) InitBarrier(full + c, 1);
    FenceBulkBarriers();
    Fetch(p, product, first, count, reinterpret_cast<__nv_bfloat16*>(shared), full);
  }
  __syncthreads();

  const int group = warp / p.row_warps, part = warp % p.row_warps;
  const int piece = part * kWarp + lane, pieces = p.in_features / kPiece;
  const bool has = piece < pieces;
  float scale[kPiece];
#pragma unroll
  for (float& s : scale) s = 1;
  if (has && p.norm != nullptr) LoadActivations<kPiece>(p.norm + piece * kPiece, scale);
  // The output that this thread writes in the end.
  const int of_row = thread / kRows, row = thread % kRows;
  const bool ends = of_row < count;
  const auto bias_of = [&](const float* biases) {
    return ends && biases != nullptr ? biases[first + of_row] : 0.0f;
  };
  const float bias = bias_of(product.bias), up_bias = bias_of(product.up_bias);
  float* const y = product.y + int64_t{row} * product.out_features + first + of_row;

  WaitForPreviousKernel();
  float x[kRows][kPiece] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (has) LoadActivations<kPiece>(p.x + int64_t{r} * p.in_features + piece * kPiece, x[r]);
  }
  const float old = ends && product.accumulate ? *y : 0.0f;
  if (p.norm != nullptr) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kPiece; ++i) {
        sum = fmaf(x[r][i], x[r][i], sum);
        x[r][i] *= scale[i];
      }
      sum = WarpSum(sum);
      if (group == 0 && lane == 0) squares[r][part] = sum;
    }
  }
  constexpr int kSums = kChunk * kRows, kLanesOfSum = kWarp / kSums;
  float* const sums_of_warps =
      reinterpret_cast<float*>(shared + chunks * kChunk * pieces);  // [row_warps, chunks, kSums]
#pragma unroll 1
  for (int c = group; c < chunks; c += p.groups) {
    BulkWait(full + c, 0);
    float sums[kSums] = {};
    if (has) {
      const uint4* const weights = shared + c * kChunk * pieces + piece;
#pragma unroll
      for (int o = 0; o < kChunk; ++o) {
        float values[kPiece];
        Unpack(Piece<__nv_bfloat16, kPiece>{weights[o * pieces]}, values);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int i = 0; i < kPiece; ++i) {
            sums[o * kRows + r] = fmaf(values[i], x[r][i], sums[o * kRows + r]);
          }
        }
      }
    }
    const float sum = WarpSums(sums, lane);
    if (lane % kLanesOfSum == 0) {
      sums_of_warps[(part * chunks + c) * kSums + lane / kLanesOfSum] = sum;
    }
  }
  __syncthreads();
  if (!ends) return;
  const auto sum_of = [&](int place) {
    float sum = 0;
#pragma unroll 4
    for (int w = 0; w < p.row_warps; ++w) {
      sum += sums_of_warps[w * chunks * kSums + place * kRows + row];
    }
    return sum;
  };
  float factor = 1;
  if (p.norm != nullptr) {
    float sum = 0;
#pragma unroll 4
    for (int w = 0; w < p.row_warps; ++w) sum += squares[row][w];
    factor = 1.0f / sqrtf(sum / static_cast<float>(p.in_features) + p.eps);
  }
  const int place = PlaceOf(gated, of_row);
  const float sum = factor * sum_of(place);
  if (gated) {
    *y = Silu(sum + bias) * (factor * sum_of(place + kChunk / 2) + up_bias);
  } else {
    *y = old + sum + bias;
  }
}

bool Takes(const PackedMatrix& matrix, int in_features) {
  return matrix.dtype == DType::kBF16 && matrix.in_features == in_features && IsAligned(matrix);
}

}  // namespace

bool LaunchRow(Device& device, const RowArgs& args) {
  const int in = args.products[0].weights.in_features, pieces = in / kPiece;
  if (!HasHopperCode(device) || args.rows < 1 || args.rows > kMostRows || in % kPiece != 0 ||
      pieces > kMostPieces || args.products.size() > size_t{kMaxLinearProducts}) {
    return false;
  }
  const bool gated = args.products[0].up.data != nullptr;
  int64_t all = 0;
  for (const RowProduct& product : args.products) {
    if (!Takes(product.weights, in) || (product.up.data != nullptr) != gated ||
        (gated && !Takes(product.up, in))) {
      return false;
    }
    all += product.weights.out_features;
  }
  Rows p = {.x = args.x,
            .norm = args.norm,
            .eps = args.eps,
            .in_features = in,
            .count = 0,
            .outputs = 0,
            .row_warps = BlocksFor(pieces, kWarp),
            .groups = 1,
            .product_blocks = 0,
            .products = {},
            .surprise = args.surprise};
  // As many blocks for each multiprocessor as have room there, with as many outputs each.
  const int64_t bytes = int64_t{2} * in * (gated ? 2 : 1);
  const int sm = device.multiprocessors();
  const int of_sm = BlocksFor(all * bytes, sm * kMostBytes);
  const int64_t most = std::min<int64_t>(kMostBytes / bytes, kMostOutputs);
  p.outputs = static_cast<int>(std::clamp<int64_t>(BlocksFor(all, of_sm * sm), 1, most));
  const int chunks = BlocksFor(p.outputs * (gated ? 2 : 1), kChunk);
  while (2 * p.groups * p.row_warps * kWarp <= 256 && 2 * p.groups <= chunks) p.groups *= 2;
  // Each output is some thread's.
  while (p.groups * p.row_warps * kWarp < p.outputs * args.rows) ++p.groups;
  int blocks = 0;
  for (const RowProduct& product : args.products) {
    p.products[p.count++] = {.weights = static_cast<const __nv_bfloat16*>(product.weights.data),
                             .up = static_cast<const __nv_bfloat16*>(product.up.data),
                             .bias = product.bias,
                             .up_bias = product.up_bias,
                             .y = product.y,
                             .out_features = product.weights.out_features,
                             .first_block = blocks,
                             .accumulate = product.accumulate};
    blocks += BlocksFor(product.weights.out_features, p.outputs);
  }
  p.product_blocks = blocks;
  if (p.surprise.tokens > 0) {
    blocks += BlocksFor(p.surprise.tokens, p.groups * p.row_warps);
  }
  const int64_t sums = int64_t{4} * p.row_warps * chunks * kChunk * args.rows;
  LaunchOverlapping(device, "RowKernel", args.rows == 1 ? RowKernel<1> : RowKernel<2>, blocks,
                    p.groups * p.row_warps * kWarp, int64_t{2} * chunks * kChunk * in + sums, 1, p);
  return true;
}

bool LinearRow(Device& device, LinearProducts products,
               const neural_memory::SurpriseOfTokens& surprise) {
  // With exact activations more rows take the kernel of few, whose sums have another order.
  if (products.empty() || device.compute_dtype() != DType::kBF16) return false;
  const LinearArgs& first = *products[0];
  const int64_t rows = first.y.shape[0];
  std::vector<RowProduct> list;
  for (const LinearArgs* const args : products) {
    if (args->weights.size() != 1 || !args->group_offsets.empty() || !args->entry_rows.empty() ||
        args->x.data != first.x.data || args->x.dtype != DType::kF32 || args->y.shape[0] != rows ||
        args->y.dtype != DType::kF32 || IsWide(args->weights[0])) {
      return false;
    }
    list.push_back({.weights = args->weights[0],
                    .up = {},
                    .bias = args->bias.as<const float>(),
                    .y = args->y.as<float>(),
                    .accumulate = args->accumulate});
  }
  return LaunchRow(device, {.x = first.x.as<const float>(),
                            .rows = static_cast<int>(rows),
                            .products = list,
                            .surprise = surprise});
}

bool SwiGluRow(Device& device, const SwiGluProductArgs& args) {
  if (device.compute_dtype() != DType::kBF16 || args.x.dtype != DType::kF32 ||
      args.y.dtype != DType::kF32) {
    return false;
  }
  const RowProduct product = {.weights = args.gate,
                              .up = args.up,
                              .bias = args.gate_bias.as<const float>(),
                              .up_bias = args.up_bias.as<const float>(),
                              .y = args.y.as<float>()};
  return LaunchRow(device, {.x = args.x.as<const float>(),
                            .rows = static_cast<int>(args.x.shape[0]),
                            .products = {&product, 1}});
}

bool NormedRow(Device& device, const NormedProductsStepArgs& args) {
  if (device.compute_dtype() != DType::kBF16 || args.norm.centred ||
      args.activation != Activation::kIdentity || !AreAligned(args.hidden, args.norm.weight)) {
    return false;
  }
  std::vector<RowProduct> list;
  for (const auto& [product, y] : args.products) {
    if (y.dtype != DType::kF32) return false;
    list.push_back({.weights = product.weights,
                    .up = {},
                    .bias = product.bias.as<const float>(),
                    .y = y.as<float>()});
  }
  return LaunchRow(device, {.x = args.hidden.as<const float>(),
                            .norm = args.norm.weight.as<const float>(),
                            .eps = args.norm.eps,
                            .rows = static_cast<int>(args.hidden.shape[0]),
                            .products = list});
}

}  // namespace mneme::cuda::linear
