// NeuralMemoryOutput: a warp takes a head of the answer from its gate to its norm, or a block a
// token from its norm to its gate. What tokens' losses say of them is found beside that, by blocks
// of their own: nothing waits for it.
#include <cstdint>
#include <variant>

#include "kernels/cuda/common/activation.cuh"
#include "kernels/cuda/common/fours.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/neural_memory/neural_memory.h"
#include "kernels/cuda/neural_memory/surprise.cuh"

namespace mneme::cuda::neural_memory {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kHeld = 2;  // accesses of a thread, of four elements each, at most

struct Output {
  const float *read, *weight, *bias;
  const void* gate;
  void* y;
  int64_t rows;  // heads of all tokens, or tokens
  int dim;       // of a row
  int blocks;    // that take rows; those behind them take tokens
  float eps;
  Activation activation;
  SurpriseOfTokens surprise;
};

// The elements that this thread, one of kOfRow, has of a row: visit(which access, element).
template <int kOfRow, typename Visit>
__device__ inline void ForEachFour(int dim, Visit visit) {
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    const int i = 4 * (n * kOfRow + static_cast<int>(threadIdx.x) % kOfRow);
    if (i < dim) visit(n, i);
  }
}

// Whether the block is one of those that take tokens, which it then has done.
__device__ inline bool FindsSurprise(const Output& p) {
  const int block = static_cast<int>(blockIdx.x) - p.blocks;
  if (block < 0) return false;
  WaitForPreviousKernel();
  p.surprise.Find(block * kWarps + static_cast<int>(threadIdx.x) / kWarp);
  return true;
}

template <typename Gate, typename Y>
__global__ void __launch_bounds__(kThreads) HeadsKernel(const __grid_constant__ Output p) {
  LetNextKernelStart();
  if (FindsSurprise(p)) return;
  float4 weights[kHeld], values[kHeld];
  ForEachFour<kWarp>(p.dim, [&](int n, int i) { weights[n] = LoadFour(p.weight + i); });
  WaitForPreviousKernel();
  const int64_t row = int64_t{blockIdx.x} * kWarps + static_cast<int64_t>(threadIdx.x) / kWarp;
  if (row >= p.rows) return;
  float sum = 0;
  ForEachFour<kWarp>(p.dim, [&](int n, int i) {
    const int64_t at = row * p.dim + i;
    const float4 x = LoadFour(p.read + at);
    const float4 g = Activated(p.activation, LoadFour(static_cast<const Gate*>(p.gate) + at));
    const float4 v = {x.x * g.x, x.y * g.y, x.z * g.z, x.w * g.w};
    sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    values[n] = v;
  });
  const float factor = 1.0f / sqrtf(WarpSum(sum) / static_cast<float>(p.dim) + p.eps);
  ForEachFour<kWarp>(p.dim, [&](int n, int i) {
    const float4 v = values[n], w = weights[n];
    SaveFour(static_cast<Y*>(p.y) + row * p.dim + i,
             {v.x * factor * w.x, v.y * factor * w.y, v.z * factor * w.z, v.w * factor * w.w});
  });
}

template <typename Gate, typename Y>
__global__ void __launch_bounds__(kThreads) TokensKernel(const __grid_constant__ Output p) {
  LetNextKernelStart();
  if (FindsSurprise(p)) return;
  __shared__ float sums[2][kWarps];
  float4 weights[kHeld], biases[kHeld], values[kHeld], gates[kHeld];
  ForEachFour<kThreads>(p.dim, [&](int n, int i) {
    weights[n] = LoadFour(p.weight + i);
    biases[n] = p.bias == nullptr ? float4{} : LoadFour(p.bias + i);
  });
  WaitForPreviousKernel();
  const int64_t row = int64_t{blockIdx.x} * p.dim;
  float sum = 0;
  ForEachFour<kThreads>(p.dim, [&](int n, int i) {
    const float4 v = values[n] = LoadFour(p.read + row + i);
    gates[n] = LoadFour(static_cast<const Gate*>(p.gate) + row + i);
    sum += v.x + v.y + v.z + v.w;
  });
  const float mean = BlockSum<kThreads>(sum, sums[0]) / static_cast<float>(p.dim);
  float squares = 0;
  ForEachFour<kThreads>(p.dim, [&](int n, int) {
    float4& v = values[n];
    v = {v.x - mean, v.y - mean, v.z - mean, v.w - mean};
    squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  });
  const float factor =
      1.0f / sqrtf(BlockSum<kThreads>(squares, sums[1]) / static_cast<float>(p.dim) + p.eps);
  ForEachFour<kThreads>(p.dim, [&](int n, int i) {
    const float4 v = values[n], w = weights[n], b = biases[n];
    const float4 g = Activated(p.activation, gates[n]);
    SaveFour(static_cast<Y*>(p.y) + row + i,
             {g.x * (v.x * factor * w.x + b.x), g.y * (v.y * factor * w.y + b.y),
              g.z * (v.z * factor * w.z + b.z), g.w * (v.w * factor * w.w + b.w)});
  });
}

template <typename Gate, typename Y>
auto KernelOf(bool by_head) {
  return by_head ? HeadsKernel<Gate, Y> : TokensKernel<Gate, Y>;
}

}  // namespace

bool NeuralMemoryOutput(Device& device, const NeuralMemoryOutputArgs& args) {
  const auto* const heads = std::get_if<RmsNormArgs>(&args.norm);
  const auto* const tokens = std::get_if<LayerNormArgs>(&args.norm);
  const bool by_head = heads != nullptr;
  const TensorView& read = by_head ? args.product.a : tokens->x;
  const TensorView& y = by_head ? heads->y : args.product.y;
  const TensorView& weight = by_head ? heads->weight : tokens->weight;
  const TensorView bias = by_head ? TensorView{} : tokens->bias;
  const TensorView& gate = args.gate.x;
  const Shape& shape = by_head ? heads->x.shape : tokens->x.shape;
  const int64_t rows = shape[0], dim = shape[1];
  const int64_t of_row = by_head ? kWarp : kThreads;
  if (rows == 0 || shape.rank != 2 || dim > 4 * kHeld * of_row || args.gate.scale != 1 ||
      args.product.accumulate || !args.gate.entry_rows.empty() ||
      !InFours(dim, read, gate, weight, bias, y)) {  // no bias: aligned
    return false;
  }
  Output p = {.read = read.as<const float>(),
              .weight = weight.as<const float>(),
              .bias = bias.as<const float>(),
              .gate = gate.data,
              .y = y.data,
              .rows = rows,
              .dim = static_cast<int>(dim),
              .blocks = static_cast<int>(by_head ? (rows + kWarps - 1) / kWarps : rows),
              .eps = by_head ? heads->eps : tokens->eps,
              .activation = args.gate.activation,
              .surprise = {}};
  int blocks = p.blocks;
  if (!args.surprise.surprise.empty()) {
    p.surprise = SurpriseOfTokens(args.surprise);
    blocks += (p.surprise.tokens + kWarps - 1) / kWarps;
  }
  const auto launch = [&](auto kernel) {
    LaunchOverlapping(device, "NeuralMemoryOutput", kernel, blocks, kThreads, 0, 1, p);
  };
  const bool rounded = y.dtype == DType::kBF16;
  if (gate.dtype == DType::kBF16) {
    launch(rounded ? KernelOf<__nv_bfloat16, __nv_bfloat16>(by_head)
                   : KernelOf<__nv_bfloat16, float>(by_head));
  } else {
    launch(rounded ? KernelOf<float, __nv_bfloat16>(by_head) : KernelOf<float, float>(by_head));
  }
  return true;
}

}  // namespace mneme::cuda::neural_memory
