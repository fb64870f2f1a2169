// The way out of a Mamba-2 memory: a block has a part of a token's channels that is normed by
// itself, in registers from what was read to the output.
#include <cstdint>

#include "kernels/cuda/common/fours.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/scan/scan.h"

namespace mneme::cuda::scan {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kHeld = 4;  // accesses of a thread
constexpr int kMostDim = 4 * kHeld * kThreads;

struct OutputProblem {
  const float *read, *u, *skip, *gate, *weight;
  float eps;
  int groups, dim;
  bool weight_of_group;
};

__device__ inline float GatedSum(float read, float skip, float u, float gate) {
  return fmaf(skip, u, read) * Silu(gate);
}

template <typename Y>
__global__ void __launch_bounds__(kThreads)
    OutputKernel(const __grid_constant__ OutputProblem p, Y* y) {
  __shared__ float sums[kWarps];
  LetNextKernelStart();
  const int group = static_cast<int>(blockIdx.x) % p.groups;
  const int64_t first = int64_t{blockIdx.x} * p.dim;
  const auto channel = [](int n) { return (n * kThreads + static_cast<int>(threadIdx.x)) * 4; };
  // Weights are on their way while the kernel ahead still runs.
  float4 skip[kHeld], weight[kHeld];
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    const int i = channel(n);
    if (i >= p.dim) break;
    skip[n] = LoadFour(p.skip + group * p.dim + i);
    weight[n] = LoadFour(p.weight + (p.weight_of_group ? group * p.dim : 0) + i);
  }
  WaitForPreviousKernel();
  float4 x[kHeld];
  float squares = 0;
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    const int i = channel(n);
    x[n] = {};
    if (i >= p.dim) continue;
    const float4 read = LoadFour(p.read + first + i), u = LoadFour(p.u + first + i);
    const float4 gate = LoadFour(p.gate + first + i);
    x[n] = {GatedSum(read.x, skip[n].x, u.x, gate.x), GatedSum(read.y, skip[n].y, u.y, gate.y),
            GatedSum(read.z, skip[n].z, u.z, gate.z), GatedSum(read.w, skip[n].w, u.w, gate.w)};
    squares += x[n].x * x[n].x + x[n].y * x[n].y + x[n].z * x[n].z + x[n].w * x[n].w;
  }
  const float factor = 1.0f / sqrtf(BlockSum<kThreads>(squares, sums) / p.dim + p.eps);
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    const int i = channel(n);
    if (i >= p.dim) continue;
    SaveFour(y + first + i, {x[n].x * factor * weight[n].x, x[n].y * factor * weight[n].y,
                             x[n].z * factor * weight[n].z, x[n].w * factor * weight[n].w});
  }
}

}  // namespace

bool Mamba2Output(Device& device, const Mamba2OutputArgs& args) {
  const Shape& shape = args.norm.x.shape;
  const int64_t groups = shape[1], dim = shape[2], blocks = shape[0] * groups;
  if (dim > kMostDim || args.skip.x.dtype != DType::kF32 || args.gate.gate.dtype != DType::kF32 ||
      !InFours(dim, args.skip.x, args.skip.scale, args.skip.y, args.gate.gate, args.norm.weight,
               args.norm.y)) {
    return false;
  }
  if (blocks == 0) return true;
  const OutputProblem problem = {.read = args.skip.y.as<const float>(),
                                 .u = args.skip.x.as<const float>(),
                                 .skip = args.skip.scale.as<const float>(),
                                 .gate = args.gate.gate.as<const float>(),
                                 .weight = args.norm.weight.as<const float>(),
                                 .eps = args.norm.eps,
                                 .groups = static_cast<int>(groups),
                                 .dim = static_cast<int>(dim),
                                 .weight_of_group = args.norm.weight.shape.rank == 2};
  const auto launch = [&](auto kernel, auto* y) {
    LaunchOverlapping(device, "output of Mamba-2", kernel, static_cast<int>(blocks), kThreads, 0, 1,
                      problem, y);
  };
  if (args.norm.y.dtype == DType::kBF16) {
    launch(OutputKernel<__nv_bfloat16>, args.norm.y.as<__nv_bfloat16>());
  } else {
    launch(OutputKernel<float>, args.norm.y.as<float>());
  }
  return true;
}

}  // namespace mneme::cuda::scan
