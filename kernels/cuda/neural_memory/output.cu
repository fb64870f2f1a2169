// NeuralMemoryOutput: a warp takes a head of the answer from its gate to its norm. What tokens'
// losses say of them is found beside that, by blocks of their own: nothing waits for it.
#include <cstdint>

#include "kernels/cuda/common/activation.cuh"
#include "kernels/cuda/common/fours.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/neural_memory/neural_memory.h"
#include "kernels/cuda/neural_memory/surprise.cuh"

namespace mneme::cuda::neural_memory {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kLaneSpan = 4 * kWarp;  // elements of a warp by one access of each lane
constexpr int kSpans = 2;             // at most

struct Output {
  const float *read, *weight;
  const void* gate;
  void* y;
  int64_t heads;  // of all tokens
  int dim;
  int blocks;  // that take heads; those behind them take tokens
  float eps;
  Activation activation;
  SurpriseOfTokens surprise;
};

template <typename Gate, typename Y>
__global__ void __launch_bounds__(kThreads) OutputKernel(const __grid_constant__ Output p) {
  LetNextKernelStart();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, block = static_cast<int>(blockIdx.x);
  if (block >= p.blocks) {
    WaitForPreviousKernel();
    return p.surprise.Find((block - p.blocks) * kWarps + warp);
  }
  float4 weights[kSpans], values[kSpans];
#pragma unroll
  for (int c = 0; c < kSpans; ++c) {
    const int i = c * kLaneSpan + 4 * lane;
    weights[c] = i < p.dim ? LoadFour(p.weight + i) : float4{};
  }
  WaitForPreviousKernel();
  const int64_t head = int64_t{block} * kWarps + warp;
  if (head >= p.heads) return;
  float sum = 0;
#pragma unroll
  for (int c = 0; c < kSpans; ++c) {
    const int i = c * kLaneSpan + 4 * lane;
    values[c] = {};
    if (i >= p.dim) continue;
    const int64_t at = head * p.dim + i;
    const float4 x = LoadFour(p.read + at), g = LoadFour(static_cast<const Gate*>(p.gate) + at);
    const float4 v = {x.x * Activated(p.activation, g.x), x.y * Activated(p.activation, g.y),
                      x.z * Activated(p.activation, g.z), x.w * Activated(p.activation, g.w)};
    sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    values[c] = v;
  }
  const float factor = 1.0f / sqrtf(WarpSum(sum) / static_cast<float>(p.dim) + p.eps);
#pragma unroll
  for (int c = 0; c < kSpans; ++c) {
    const int i = c * kLaneSpan + 4 * lane;
    if (i >= p.dim) continue;
    const float4 v = values[c], w = weights[c];
    SaveFour(static_cast<Y*>(p.y) + head * p.dim + i,
             {v.x * factor * w.x, v.y * factor * w.y, v.z * factor * w.z, v.w * factor * w.w});
  }
}

}  // namespace

bool NeuralMemoryOutput(Device& device, const NeuralMemoryOutputArgs& args) {
  const TensorView &read = args.product.a, &gate = args.gate.x, &y = args.norm.y;
  const int64_t heads = args.norm.x.shape[0], dim = args.norm.x.shape[1];
  if (heads == 0 || dim > kSpans * kLaneSpan || args.gate.scale != 1 || args.product.accumulate ||
      !args.gate.entry_rows.empty() || !InFours(dim, read, gate, args.norm.weight, y)) {
    return false;
  }
  Output p = {.read = read.as<const float>(),
              .weight = args.norm.weight.as<const float>(),
              .gate = gate.data,
              .y = y.data,
              .heads = heads,
              .dim = static_cast<int>(dim),
              .blocks = static_cast<int>((heads + kWarps - 1) / kWarps),
              .eps = args.norm.eps,
              .activation = args.gate.activation,
              .surprise = {}};
  int blocks = p.blocks;
  if (!args.surprise.surprise.empty()) {
    p.surprise = SurpriseOfTokens(args.surprise);
    blocks += (p.surprise.tokens + kWarps - 1) / kWarps;
  }
  const bool rounded = y.dtype == DType::kBF16;
  const auto kernel =
      gate.dtype == DType::kBF16
          ? (rounded ? OutputKernel<__nv_bfloat16, __nv_bfloat16>
                     : OutputKernel<__nv_bfloat16, float>)
          : (rounded ? OutputKernel<float, __nv_bfloat16> : OutputKernel<float, float>);
  LaunchOverlapping(device, "NeuralMemoryOutput", kernel, blocks, kThreads, 0, 1, p);
  return true;
}

}  // namespace mneme::cuda::neural_memory
