// LayerNorm, also of the heads of tokens. A row's result depends on its own values and on the row's
// length only, never on how many rows there are.
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/common/fours.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/dense/dense.h"

namespace mneme::cuda::dense {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

// One warp per row (kWarpPerRow) or one block. Up to kHeld accesses of a thread stay in registers
// from the mean to the output; of longer rows the rest is read three times.
template <typename Y, bool kFours, bool kWarpPerRow>
__global__ void __launch_bounds__(kThreads)
    LayerNormKernel(const float* x, const float* weight, const float* bias, Y* y, int64_t rows,
                    int heads, int dim, float eps) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  constexpr int kOfRow = kWarpPerRow ? kWarp : kThreads;
  constexpr int kStep = kFours ? 4 : 1;
  constexpr int kHeld = kFours ? 2 : 8;
  __shared__ float sums[2][kWarps];
  const int thread = threadIdx.x % kOfRow;
  const int64_t row = int64_t{blockIdx.x} * (kThreads / kOfRow) + threadIdx.x / kOfRow;
  if (row >= rows) return;  // whole warps; blocks have one row each
  x += row * dim;
  y += row * dim;
  weight += row % heads * dim;
  if (bias != nullptr) bias += row % heads * dim;
  const auto total = [&](float sum, int n) {
    return kWarpPerRow ? WarpSum(sum) : BlockSum<kThreads>(sum, sums[n]);
  };

  const int rest = kHeld * kOfRow * kStep;
  float held[kHeld * kStep];
  float sum = 0;
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    const int i = (n * kOfRow + thread) * kStep;
    if constexpr (kFours) {
      float4 v = {};
      if (i < dim) v = LoadFour(x + i);
      held[4 * n] = v.x, held[4 * n + 1] = v.y, held[4 * n + 2] = v.z, held[4 * n + 3] = v.w;
    } else {
      held[n] = i < dim ? x[i] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kStep; ++j) sum += held[n * kStep + j];
  }
  for (int i = rest + thread; i < dim; i += kOfRow) sum += x[i];
  const float mean = total(sum, 0) / dim;

  float squares = 0;
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    if ((n * kOfRow + thread) * kStep >= dim) break;
#pragma unroll
    for (int j = 0; j < kStep; ++j) {
      held[n * kStep + j] -= mean;
      squares += held[n * kStep + j] * held[n * kStep + j];
    }
  }
  for (int i = rest + thread; i < dim; i += kOfRow) squares += (x[i] - mean) * (x[i] - mean);
  const float factor = 1.0f / sqrtf(total(squares, 1) / dim + eps);

#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    const int i = (n * kOfRow + thread) * kStep;
    if (i >= dim) break;
    const float* from = held + n * kStep;
    if constexpr (kFours) {
      const float4 w = LoadFour(weight + i);
      float4 b = {};
      if (bias != nullptr) b = LoadFour(bias + i);
      SaveFour(y + i, {from[0] * factor * w.x + b.x, from[1] * factor * w.y + b.y,
                       from[2] * factor * w.z + b.z, from[3] * factor * w.w + b.w});
    } else {
      const float b = bias != nullptr ? bias[i] : 0.0f;
      y[i] = FromFloat<Y>(from[0] * factor * weight[i] + b);
    }
  }
  for (int i = rest + thread; i < dim; i += kOfRow) {
    const float b = bias != nullptr ? bias[i] : 0.0f;
    y[i] = FromFloat<Y>((x[i] - mean) * factor * weight[i] + b);
  }
}

template <typename Y>
void Launch(Device& device, const LayerNormArgs& args) {
  const Shape& shape = args.x.shape;
  const int64_t heads = shape.rank == 3 ? shape[1] : 1, dim = shape[shape.rank - 1];
  const int64_t rows = shape[0] * heads;
  if (rows == 0 || dim == 0) return;
  const bool fours = InFours(dim, args.x, args.weight, args.bias, args.y);  // no bias: aligned
  constexpr int64_t kWarpsRow = 256;  // up to so many elements, a warp is enough
  const bool warp_per_row = dim <= kWarpsRow;
  const auto kernel =
      fours ? (warp_per_row ? LayerNormKernel<Y, true, true> : LayerNormKernel<Y, true, false>)
            : (warp_per_row ? LayerNormKernel<Y, false, true> : LayerNormKernel<Y, false, false>);
  const int64_t blocks = warp_per_row ? (rows + kWarps - 1) / kWarps : rows;
  LaunchOverlapping(device, "LayerNorm", kernel, static_cast<int>(blocks), kThreads, 0, 1,
                    args.x.as<const float>(), args.weight.as<const float>(),
                    args.bias.as<const float>(), args.y.as<Y>(), rows, static_cast<int>(heads),
                    static_cast<int>(dim), args.eps);
}

}  // namespace

void LayerNorm(Device& device, const LayerNormArgs& args) {
  CHECK(args.x.dtype == DType::kF32) << "LayerNorm";
  // y is f32, or bf16 as Backend::product_dtype says.
  if (args.y.dtype == DType::kBF16) return Launch<__nv_bfloat16>(device, args);
  CHECK(args.y.dtype == DType::kF32) << "LayerNorm";
  Launch<float>(device, args);
}

}  // namespace mneme::cuda::dense
