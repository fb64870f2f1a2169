// Operations on the vector of each head, other than the norms of dense/elementwise.cu: a warp takes
// one. Outputs that may be the input are written by the lane that read the same element.
#include <cfloat>
#include <cmath>
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/common/blocks.h"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/exponentials.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/dense/dense.h"

namespace mneme::cuda::dense {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;

// The row of this warp, or `rows` or more.
__device__ inline int64_t OwnRow() { return int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; }

__global__ void __launch_bounds__(kThreads)
    SumNormKernel(const float* x, float* y, int64_t rows, int dim, float eps) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t row = OwnRow();
  if (row >= rows) return;
  x += row * dim;
  y += row * dim;
  float sum = 0;
  for (int i = threadIdx.x % kWarp; i < dim; i += kWarp) sum += x[i];
  sum = WarpSum(sum) + eps;
  const float by = sum == 0 ? INFINITY : sum;
  for (int i = threadIdx.x % kWarp; i < dim; i += kWarp) y[i] = x[i] / by;
}

__global__ void __launch_bounds__(kThreads)
    DivideKernel(const float* x, const float* z, float* y, int64_t rows, int dim, float eps) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t row = OwnRow();
  if (row >= rows) return;
  const float by = z[row] + eps;
  for (int i = threadIdx.x % kWarp; i < dim; i += kWarp) y[row * dim + i] = x[row * dim + i] / by;
}

__global__ void __launch_bounds__(kThreads)
    SoftmaxKernel(const float* x, float* y, int64_t rows, int dim) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t row = OwnRow();
  if (row >= rows) return;
  x += row * dim;
  y += row * dim;
  const int lane = threadIdx.x % kWarp;
  float largest = -INFINITY, sum = 0;
  for (int i = lane; i < dim; i += kWarp) largest = fmaxf(largest, x[i]);
  largest = WarpMax(largest);
  for (int i = lane; i < dim; i += kWarp) sum += expf(x[i] - largest);
  sum = WarpSum(sum);
  for (int i = lane; i < dim; i += kWarp) y[i] = expf(x[i] - largest) / sum;
}

__global__ void __launch_bounds__(kThreads)
    HedgehogKernel(const float* x, float* y, int64_t rows, int dim) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t row = OwnRow();
  if (row >= rows) return;
  x += row * dim;
  y += row * 2 * dim;
  const int lane = threadIdx.x % kWarp;
  float largest = -INFINITY, sum = 0;
  for (int i = lane; i < dim; i += kWarp) largest = fmaxf(largest, fabsf(2 * x[i]));
  largest = WarpMax(largest);
  for (int i = lane; i < dim; i += kWarp) {
    sum += expf(2 * x[i] - largest) + expf(-2 * x[i] - largest);
  }
  sum = WarpSum(sum);
  for (int i = lane; i < dim; i += kWarp) {
    y[i] = expf(2 * x[i] - largest) / sum;
    y[dim + i] = expf(-2 * x[i] - largest) / sum;
  }
}

__global__ void __launch_bounds__(kThreads)
    DpfpKernel(const float* x, float* y, int64_t rows, int dim) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t row = OwnRow();
  if (row >= rows) return;
  x += row * dim;
  y += row * 8 * dim;
  const auto both = [&](int i) {
    const float r = fmaxf(x[i < dim ? i : i - dim], 0.0f);
    return i < dim ? r : -r;
  };
  for (int i = threadIdx.x % kWarp; i < 2 * dim; i += kWarp) {
#pragma unroll
    for (int roll = 1; roll <= 4; ++roll) {
      // In one-dimensional heads a roll may go round more than once.
      y[(roll - 1) * 2 * dim + i] = both(i) * both((i - roll + 4 * dim) % (2 * dim));
    }
  }
}

template <typename... Parameters, typename... Arguments>
void Launch(Device& device, const char* name, void (*kernel)(Parameters...), const TensorView& x,
            Arguments... arguments) {
  CHECK(x.dtype == DType::kF32) << name;
  const int64_t rows = x.shape[0] * x.shape[1];
  if (rows == 0 || x.shape[2] == 0) return;
  LaunchOverlapping(device, name, kernel, BlocksFor(rows, kWarps), kThreads, 0, 1,
                    x.as<const float>(), arguments...);
}
int64_t RowsOf(const TensorView& x) { return x.shape[0] * x.shape[1]; }
int DimOf(const TensorView& x) { return static_cast<int>(x.shape[2]); }

}  // namespace

void SumNorm(Device& device, const SumNormArgs& args) {
  Launch(device, "SumNorm", SumNormKernel, args.x, args.y.as<float>(), RowsOf(args.x),
         DimOf(args.x), args.eps);
}

void Divide(Device& device, const DivideArgs& args) {
  Launch(device, "Divide", DivideKernel, args.x, args.z.as<const float>(), args.y.as<float>(),
         RowsOf(args.x), DimOf(args.x), args.eps);
}

void Softmax(Device& device, const SoftmaxArgs& args) {
  Launch(device, "Softmax", SoftmaxKernel, args.x, args.y.as<float>(), RowsOf(args.x),
         DimOf(args.x));
}

void MapFeatures(Device& device, const FeatureMapArgs& args) {
  Launch(device, "MapFeatures", args.map == FeatureMap::kHedgehog ? HedgehogKernel : DpfpKernel,
         args.x, args.y.as<float>(), RowsOf(args.x), DimOf(args.x));
}

}  // namespace mneme::cuda::dense
