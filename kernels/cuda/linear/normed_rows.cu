// LayerNorm of one or two rows, products with what comes out of it, and an activation, in one
// launch. A warp takes a few output features, and holds its weights, multiplied by the norm's, in
// registers before the rows are there. Then each warp norms the rows by itself: with
// w'_i = w_i weight_i and c = sum_i w_i bias_i,
//   sum_i w_i (factor (x_i - mean) weight_i + bias_i) = factor sum_i w'_i (x_i - mean) + c
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/common/activation.cuh"
#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/linear/batch.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/pieces.cuh"

namespace mneme::cuda::linear {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kMostRows = 2;
constexpr int kMostProducts = 4;
constexpr int kMostOfLane = 64;  // features of a row, in registers

struct NormedProduct {
  const void* weights;  // [out_features, dim]
  const float* bias;    // [out_features] or null
  float* y;             // [rows, out_features]
  int out_features;
  int first_block;
};
struct NormedProducts {
  const float *hidden, *norm, *norm_bias;  // [rows, dim], [dim], [dim] or null
  float eps;
  int dim, count;
  Activation activation;
  NormedProduct products[kMostProducts];
};

// A lane has kPieces pieces of kPiece features of each row, kWarp pieces apart; `dim` is a multiple
// of kPiece. Sums have the same order whatever the number of rows.
template <typename T, int kPiece, int kPieces, int kRows, int kOutputs>
__global__ void __launch_bounds__(kThreads)
    NormedRowsKernel(const __grid_constant__ NormedProducts p) {
  constexpr int kStride = kWarp * kPiece;
  LetNextKernelStart();
  int n = 0;
  while (n + 1 < p.count && static_cast<int>(blockIdx.x) >= p.products[n + 1].first_block) ++n;
  const NormedProduct& product = p.products[n];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int block = static_cast<int>(blockIdx.x) - product.first_block;
  const int first = (block * kWarps + warp) * kOutputs;
  const int k_begin = lane * kPiece;

  // Weights, which nobody writes.
  const auto* const matrix = static_cast<const T*>(product.weights);
  Piece<T, kPiece> raw[kOutputs][kPieces];
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    const int k = k_begin + j * kStride;
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      raw[o][j] = {};
      if (k < p.dim) {
        const int64_t row = min(first + o, product.out_features - 1);
        raw[o][j] = LoadWeights<T, kPiece>(matrix + row * p.dim + k);
      }
    }
  }
  float w[kOutputs][kPieces][kPiece];
  float shift[kOutputs] = {};
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    const int k = k_begin + j * kStride;
    float scale[kPiece] = {}, bias[kPiece] = {};
    if (k < p.dim) {
      LoadActivations<kPiece>(p.norm + k, scale);
      if (p.norm_bias != nullptr) LoadActivations<kPiece>(p.norm_bias + k, bias);
    }
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      Unpack(raw[o][j], w[o][j]);
#pragma unroll
      for (int i = 0; i < kPiece; ++i) {
        shift[o] = fmaf(w[o][j][i], bias[i], shift[o]);
        w[o][j][i] *= scale[i];
      }
    }
  }
  // The output that this lane ends with, if it does.
  constexpr int kCount = kOutputs * kRows, kLanesPerSum = kWarp / kCount;
  const int own = lane / kLanesPerSum / kRows, row = lane / kLanesPerSum % kRows;
  const bool ends = lane % kLanesPerSum == 0 && first + own < product.out_features;
  float constant = ends && product.bias != nullptr ? product.bias[first + own] : 0.0f;
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
    const float sum = WarpSum(shift[o]);
    if (o == own) constant += sum;
  }

  WaitForPreviousKernel();
  float x[kRows][kPieces][kPiece];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const int k = k_begin + j * kStride;
#pragma unroll
      for (int i = 0; i < kPiece; ++i) x[r][j][i] = 0.0f;
      if (k < p.dim) LoadActivations<kPiece>(p.hidden + int64_t{r} * p.dim + k, x[r][j]);
    }
  }
  float sums[kCount], factor = 0;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
#pragma unroll
      for (int i = 0; i < kPiece; ++i) sum += x[r][j][i];
    }
    const float mean = WarpSum(sum) / p.dim;
    float squares = 0;
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) sums[o * kRows + r] = 0;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      if (k_begin + j * kStride >= p.dim) continue;
#pragma unroll
      for (int i = 0; i < kPiece; ++i) {
        const float centred = x[r][j][i] - mean;
        squares = fmaf(centred, centred, squares);
#pragma unroll
        for (int o = 0; o < kOutputs; ++o) {
          sums[o * kRows + r] = fmaf(w[o][j][i], centred, sums[o * kRows + r]);
        }
      }
    }
    const float of_row = 1.0f / sqrtf(WarpSum(squares) / p.dim + p.eps);
    if (r == row) factor = of_row;
  }
  const float sum = WarpSums(sums, lane);
  if (!ends) return;
  product.y[int64_t{row} * product.out_features + first + own] =
      Activated(p.activation, fmaf(factor, sum, constant));
}

template <typename T, int kPiece, int kPieces, int kRows>
void Launch(Device& device, const NormedProductsStepArgs& args) {
  constexpr int kOutputs = kPieces * kPiece > kMostOfLane / 2 ? 1 : 2;
  constexpr int kOfBlock = kWarps * kOutputs;
  NormedProducts p = {.hidden = args.hidden.as<const float>(),
                      .norm = args.norm.weight.as<const float>(),
                      .norm_bias = args.norm.bias.as<const float>(),
                      .eps = args.norm.eps,
                      .dim = static_cast<int>(args.hidden.shape[1]),
                      .count = 0,
                      .activation = args.activation,
                      .products = {}};
  int blocks = 0;
  for (const auto& [product, y] : args.products) {
    p.products[p.count++] = {.weights = product.weights.data,
                             .bias = product.bias.as<const float>(),
                             .y = y.as<float>(),
                             .out_features = product.weights.out_features,
                             .first_block = blocks};
    blocks += (product.weights.out_features + kOfBlock - 1) / kOfBlock;
  }
  LaunchOverlapping(device, "NormedRows", NormedRowsKernel<T, kPiece, kPieces, kRows, kOutputs>,
                    blocks, kThreads, 0, 1, p);
}

template <typename T, int kPiece, int kPieces>
void LaunchOfPieces(Device& device, const NormedProductsStepArgs& args) {
  if (args.hidden.shape[0] == 1) return Launch<T, kPiece, kPieces, 1>(device, args);
  Launch<T, kPiece, kPieces, 2>(device, args);
}

template <typename T>
void LaunchOf(Device& device, const NormedProductsStepArgs& args) {
  constexpr int kPiece = 16 / sizeof(T), kMost = kMostOfLane / kPiece;
  const auto pieces = (args.hidden.shape[1] + kWarp * kPiece - 1) / (kWarp * kPiece);
  if (pieces <= kMost / 4) return LaunchOfPieces<T, kPiece, kMost / 4>(device, args);
  if (pieces <= kMost * 3 / 8) return LaunchOfPieces<T, kPiece, kMost * 3 / 8>(device, args);
  if (pieces <= kMost / 2) return LaunchOfPieces<T, kPiece, kMost / 2>(device, args);
  LaunchOfPieces<T, kPiece, kMost>(device, args);
}

}  // namespace

bool NormedRows(Device& device, const NormedProductsStepArgs& args) {
  const int64_t rows = args.hidden.shape[0], dim = args.hidden.shape[1];
  const DType dtype = args.products[0].product.weights.dtype;
  const int piece = SizeOf(dtype) == 2 ? 8 : 4;
  if (rows < 1 || rows > kMostRows || args.products.size() > size_t{kMostProducts} ||
      dim % piece != 0 || dim > kMostOfLane * kWarp ||
      !AreAligned(args.hidden, args.norm.weight, args.norm.bias)) {
    return false;
  }
  for (const auto& [product, y] : args.products) {
    if (product.weights.dtype != dtype || !IsAligned(product.weights) || y.dtype != DType::kF32) {
      return false;
    }
  }
  if (dtype == DType::kBF16) {
    LaunchOf<__nv_bfloat16>(device, args);
  } else if (dtype == DType::kF16) {
    LaunchOf<__half>(device, args);
  } else {
    LaunchOf<float>(device, args);
  }
  return true;
}

}  // namespace mneme::cuda::linear
