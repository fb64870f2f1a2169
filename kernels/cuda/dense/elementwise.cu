// Operations that touch every activation once: copies, norms, gates. A row's result depends on its
// own values and on the row's length only, never on how many rows there are.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "base/log.h"
#include "kernels/cuda/common/activation.cuh"
#include "kernels/cuda/common/blocks.h"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/fours.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/dense/dense.h"

namespace mneme::cuda::dense {
namespace {

// y[i] = table[indices[i]], one block per row.
template <typename T, bool kFours>
__global__ void CopyRows(const T* table, const int32_t* indices, int dim, float* y) {
  const T* from = table + int64_t{indices[blockIdx.x]} * dim;
  float* to = y + int64_t{blockIdx.x} * dim;
  if constexpr (kFours) {
    for (int i = 4 * threadIdx.x; i < dim; i += 4 * blockDim.x) {
      *reinterpret_cast<float4*>(to + i) = LoadFour(from + i);
    }
  } else {
    for (int i = threadIdx.x; i < dim; i += blockDim.x) to[i] = ToFloat(from[i]);
  }
}

// Not launched to overlap: a step's layers, behind its embedding, find all that its row index says
// before their own wait.
template <typename T>
void LaunchCopyRows(Device& device, const TensorView& table, const TensorView& indices,
                    const TensorView& y, const char* what) {
  const int64_t rows = indices.shape[0], dim = table.shape[1];
  if (rows == 0) return;
  const bool fours = InFours(dim, table, y);
  const auto kernel = fours ? CopyRows<T, true> : CopyRows<T, false>;
  kernel<<<rows, ThreadsFor(fours ? dim / 4 : dim), 0, device.stream()>>>(
      table.as<const T>(), indices.as<const int32_t>(), static_cast<int>(dim), y.as<float>());
  device.Check(cudaGetLastError(), what);
}

// y[t] += table[positions[t]], one block per token.
template <typename T>
__global__ void AddRows(const T* table, int64_t count, const int64_t* positions, int64_t period,
                        int dim, float* y) {
  int64_t position = positions[blockIdx.x];
  if (period > 0) position %= period;
  if (position < 0 || position >= count) return;
  const T* from = table + position * dim;
  float* to = y + int64_t{blockIdx.x} * dim;
  for (int i = threadIdx.x; i < dim; i += blockDim.x) to[i] += ToFloat(from[i]);
}

template <typename T>
void LaunchAddRows(Device& device, const AddPositionsArgs& args) {
  const int64_t tokens = args.positions.shape[0], dim = args.table.shape[1];
  if (tokens == 0) return;
  AddRows<T><<<tokens, ThreadsFor(dim), 0, device.stream()>>>(
      args.table.as<const T>(), args.table.shape[0], args.positions.as<const int64_t>(),
      args.period, static_cast<int>(dim), args.y.as<float>());
  device.Check(cudaGetLastError(), "AddPositions");
}

// One block per token.
__global__ void PositionLayerKernel(const int64_t* positions, int64_t period, const float* weight,
                                    const float* bias, int dim, float* y) {
  const auto input = static_cast<float>(positions[blockIdx.x] / period);
  float* to = y + int64_t{blockIdx.x} * dim;
  for (int i = threadIdx.x; i < dim; i += blockDim.x) to[i] = Silu(fmaf(weight[i], input, bias[i]));
}

// y = x * factor * weight * gate: the norms differ in the factor, which they make of a row's sum of
// squares, in the weight, which is known before x is, and in the gate, which is loaded with it.
struct NoGate {
  static constexpr bool kGated = false;
  __device__ float Gate(int64_t) const { return 1.0f; }
  __device__ float4 FourGates(int64_t) const { return {1.0f, 1.0f, 1.0f, 1.0f}; }
};
struct RmsOutput : NoGate {
  const float* weight;
  float eps;
  RmsOutput(const float* weight, float eps) : weight(weight), eps(eps) {}
  __device__ float Factor(float sum, int dim) const { return 1.0f / sqrtf(sum / dim + eps); }
  __device__ float Weight(int64_t, int i) const { return weight[i]; }
  __device__ float4 FourWeights(int64_t, int i) const { return LoadFour(weight + i); }
};
struct L2Output : NoGate {
  float scale, eps;
  L2Output(float scale, float eps) : scale(scale), eps(eps) {}
  __device__ float Factor(float sum, int) const { return scale / sqrtf(sum + eps); }
  __device__ float Weight(int64_t, int) const { return 1.0f; }
  __device__ float4 FourWeights(int64_t, int) const { return {1.0f, 1.0f, 1.0f, 1.0f}; }
};
// Weights of each head by itself: `span` of them, after which they repeat.
struct HeadRmsOutput : NoGate {
  const float* weight;
  int64_t span;
  float eps;
  HeadRmsOutput(const float* weight, int64_t span, float eps)
      : weight(weight), span(span), eps(eps) {}
  __device__ float Factor(float sum, int dim) const { return 1.0f / sqrtf(sum / dim + eps); }
  __device__ float Weight(int64_t offset, int i) const { return weight[offset % span + i]; }
  __device__ float4 FourWeights(int64_t offset, int i) const {
    return LoadFour(weight + offset % span + i);
  }
};
template <typename T>
struct GatedRmsOutput {
  static constexpr bool kGated = true;
  const float* weight;
  int64_t span;
  const T* gate;
  float eps;
  bool sigmoid;
  __device__ float Factor(float sum, int dim) const { return 1.0f / sqrtf(sum / dim + eps); }
  __device__ float Weight(int64_t offset, int i) const { return weight[offset % span + i]; }
  __device__ float4 FourWeights(int64_t offset, int i) const {
    return LoadFour(weight + offset % span + i);
  }
  __device__ float Gate(int64_t at) const { return OutputGate(sigmoid, ToFloat(gate[at])); }
  __device__ float4 FourGates(int64_t at) const {
    const float4 g = LoadFour(gate + at);
    return {OutputGate(sigmoid, g.x), OutputGate(sigmoid, g.y), OutputGate(sigmoid, g.z),
            OutputGate(sigmoid, g.w)};
  }
};

constexpr int kNormThreads = 256;

// One warp per row (kThreads == kWarp) or one block of kNormThreads. Up to kHeld accesses of a
// thread stay in registers between the sum and the output; longer rows are read twice.
template <typename Output, typename Y, bool kFours, bool kWarpPerRow>
__global__ void __launch_bounds__(kNormThreads)
    Norm(const float* x, Y* y, int64_t rows, int dim, Output output) {
  LetNextKernelStart();
  constexpr int kThreads = kWarpPerRow ? kWarp : kNormThreads;
  constexpr int kStep = kFours ? 4 : 1;
  constexpr int kHeld = kFours ? 2 : 8;
  __shared__ float scratch[kNormThreads / kWarp];
  const int thread = threadIdx.x % kThreads;
  const int64_t row = int64_t{blockIdx.x} * (kNormThreads / kThreads) + threadIdx.x / kThreads;
  const int64_t offset = row * dim;

  float held[kHeld * kStep], multiplier[kHeld * kStep];
  const auto set = [](float* to, const float4& four) {
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
  };
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    const int i = (n * kThreads + thread) * kStep;
    if constexpr (kFours) {
      set(multiplier + 4 * n, i < dim ? output.FourWeights(offset, i) : float4{});
    } else {
      multiplier[n] = i < dim ? output.Weight(offset, i) : 0.0f;
    }
  }
  WaitForPreviousKernel();
  if (row >= rows) return;  // whole warps; blocks have one row each
  float sum = 0;
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    const int i = (n * kThreads + thread) * kStep;
    if constexpr (kFours) {
      float4 v = {}, gate = {};
      if (i < dim) v = LoadFour(x + offset + i), gate = output.FourGates(offset + i);
      set(held + 4 * n, v);
      if constexpr (Output::kGated) {
        multiplier[4 * n] *= gate.x, multiplier[4 * n + 1] *= gate.y;
        multiplier[4 * n + 2] *= gate.z, multiplier[4 * n + 3] *= gate.w;
      }
    } else {
      held[n] = i < dim ? x[offset + i] : 0.0f;
      if constexpr (Output::kGated) multiplier[n] *= i < dim ? output.Gate(offset + i) : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kStep; ++j) sum += held[n * kStep + j] * held[n * kStep + j];
  }
  const int rest = kHeld * kThreads * kStep;
  for (int i = rest + thread; i < dim; i += kThreads) sum += x[offset + i] * x[offset + i];
  sum = kWarpPerRow ? WarpSum(sum) : BlockSum<kNormThreads>(sum, scratch);
  const float factor = output.Factor(sum, dim);

#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    const int i = (n * kThreads + thread) * kStep;
    if (i >= dim) break;
    Y* to = y + offset + i;
    const float* from = held + n * kStep;
    const float* by = multiplier + n * kStep;
    if constexpr (kFours) {
      SaveFour(to, {from[0] * factor * by[0], from[1] * factor * by[1], from[2] * factor * by[2],
                    from[3] * factor * by[3]});
    } else {
      *to = FromFloat<Y>(from[0] * factor * by[0]);
    }
  }
  for (int i = rest + thread; i < dim; i += kThreads) {
    const float by = output.Weight(offset, i) * output.Gate(offset + i);
    y[offset + i] = FromFloat<Y>(x[offset + i] * factor * by);
  }
}

template <typename Y, typename Output>
void LaunchNormOf(Device& device, const TensorView& x, const TensorView& y, int64_t rows,
                  int64_t dim, bool fours, Output output, const char* what) {
  if (rows == 0 || dim == 0) return;
  CHECK(x.dtype == DType::kF32) << what;
  constexpr int64_t kWarpsRow = 256;  // up to so many elements, a warp is enough
  const bool warp_per_row = dim <= kWarpsRow;
  const auto kernel =
      fours ? (warp_per_row ? Norm<Output, Y, true, true> : Norm<Output, Y, true, false>)
            : (warp_per_row ? Norm<Output, Y, false, true> : Norm<Output, Y, false, false>);
  constexpr int kWarps = kNormThreads / kWarp;
  const int64_t blocks = warp_per_row ? (rows + kWarps - 1) / kWarps : rows;
  LaunchOverlapping(device, what, kernel, static_cast<int>(blocks), kNormThreads, 0, 1,
                    x.as<const float>(), y.as<Y>(), rows, static_cast<int>(dim), output);
}

template <typename Output>
void LaunchNorm(Device& device, const TensorView& x, const TensorView& y, int64_t rows, int64_t dim,
                bool fours, Output output, const char* what) {
  CHECK(y.dtype == DType::kF32) << what;
  LaunchNormOf<float>(device, x, y, rows, dim, fours, output, what);
}
// y is f32, or bf16 as Backend::product_dtype says.
template <typename Output>
void LaunchNormForProduct(Device& device, const TensorView& x, const TensorView& y, int64_t rows,
                          int64_t dim, bool fours, Output output, const char* what) {
  if (y.dtype == DType::kBF16) {
    return LaunchNormOf<__nv_bfloat16>(device, x, y, rows, dim, fours, output, what);
  }
  LaunchNorm(device, x, y, rows, dim, fours, output, what);
}

// y may alias gate or up, so a thread reads before it writes.
template <typename Y>
__global__ void SwiGluKernel(const float* gate, const float* up, Y* y, int64_t fours, int64_t n) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < fours) {
    const float4 g = LoadFour(gate + 4 * i), u = LoadFour(up + 4 * i);
    SaveFour(y + 4 * i, {Silu(g.x) * u.x, Silu(g.y) * u.y, Silu(g.z) * u.z, Silu(g.w) * u.w});
    return;
  }
  const int64_t j = 4 * fours + (i - fours);
  if (j < n) y[j] = FromFloat<Y>(Silu(gate[j]) * up[j]);
}

// Outputs may be the inputs.
__global__ void DeltaGatesKernel(const float* a, const float* b, const float* a_log,
                                 const float* dt_bias, const int32_t* entry_rows, float beta_scale,
                                 int64_t n, int heads, float* log_decay, float* beta) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const int64_t entry = i / heads;
  const int head = static_cast<int>(i - entry * heads);
  const int64_t from = (entry_rows != nullptr ? int64_t{entry_rows[entry]} : entry) * heads + head;
  const float gate_a = a[from], gate_b = b[from];
  log_decay[i] = LogDecay(gate_a, a_log[head], dt_bias[head]);
  beta[i] = beta_scale * Sigmoid(gate_b);
}

// A column of blocks for each row.
__global__ void BanTokensKernel(float* logits, int64_t vocab, const int32_t* tokens, int count) {
  const int i = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  if (i < count) logits[blockIdx.x * vocab + tokens[i]] = -INFINITY;
}

constexpr int kThreads = 256;

}  // namespace

void Embedding(Device& device, const EmbeddingArgs& args) {
  switch (args.table.dtype) {
    case DType::kF32:
      return LaunchCopyRows<float>(device, args.table, args.ids, args.y, "Embedding");
    case DType::kBF16:
      return LaunchCopyRows<__nv_bfloat16>(device, args.table, args.ids, args.y, "Embedding");
    case DType::kF16:
      return LaunchCopyRows<__half>(device, args.table, args.ids, args.y, "Embedding");
    default:
      CHECK(false) << "an embedding of " << Name(args.table.dtype);
  }
}

void AddPositions(Device& device, const AddPositionsArgs& args) {
  CHECK(args.y.dtype == DType::kF32);
  switch (args.table.dtype) {
    case DType::kF32:
      return LaunchAddRows<float>(device, args);
    case DType::kBF16:
      return LaunchAddRows<__nv_bfloat16>(device, args);
    case DType::kF16:
      return LaunchAddRows<__half>(device, args);
    default:
      CHECK(false) << "positions of " << Name(args.table.dtype);
  }
}

void PositionLayer(Device& device, const PositionLayerArgs& args) {
  const int64_t tokens = args.positions.shape[0], dim = args.weight.shape[0];
  if (tokens == 0) return;
  CHECK(args.y.dtype == DType::kF32);
  PositionLayerKernel<<<tokens, ThreadsFor(dim), 0, device.stream()>>>(
      args.positions.as<const int64_t>(), args.period, args.weight.as<const float>(),
      args.bias.as<const float>(), static_cast<int>(dim), args.y.as<float>());
  device.Check(cudaGetLastError(), "PositionLayer");
}

void GatherRows(Device& device, const GatherRowsArgs& args) {
  CHECK(args.x.dtype == DType::kF32);
  LaunchCopyRows<float>(device, args.x, args.indices, args.y, "GatherRows");
}

void BanTokens(Device& device, const BanTokensArgs& args) {
  CHECK(args.logits.dtype == DType::kF32);
  const int64_t rows = args.logits.shape[0], count = args.tokens.shape[0];
  if (rows == 0 || count == 0) return;
  const dim3 blocks(static_cast<unsigned>(rows), static_cast<unsigned>(BlocksFor(count, kThreads)));
  BanTokensKernel<<<blocks, kThreads, 0, device.stream()>>>(
      args.logits.as<float>(), args.logits.shape[1], args.tokens.as<const int32_t>(),
      static_cast<int>(count));
  device.Check(cudaGetLastError(), "BanTokens");
}

void RmsNorm(Device& device, const RmsNormArgs& args) {
  const int64_t dim = args.x.shape[1];
  LaunchNormForProduct(device, args.x, args.y, args.x.shape[0], dim,
                       InFours(dim, args.x, args.weight, args.y),
                       RmsOutput{args.weight.as<const float>(), args.eps}, "RmsNorm");
}

void L2Norm(Device& device, const L2NormArgs& args) {
  const int64_t dim = args.x.shape[2];
  LaunchNorm(device, args.x, args.y, args.x.shape[0] * args.x.shape[1], dim,
             InFours(dim, args.x, args.y), L2Output{args.scale, args.eps}, "L2Norm");
}

void GatedRmsNorm(Device& device, const GatedRmsNormArgs& args) {
  const int64_t rows = args.x.shape[0] * args.x.shape[1], dim = args.x.shape[2];
  const bool fours = InFours(dim, args.x, args.gate, args.weight, args.y);  // no gate: aligned
  const float* weight = args.weight.as<const float>();
  const int64_t span = args.weight.shape.elements();
  if (args.gate.empty()) {
    return LaunchNormForProduct(device, args.x, args.y, rows, dim, fours,
                                HeadRmsOutput{weight, span, args.eps}, "GatedRmsNorm");
  }
  CHECK(args.activation == Activation::kSilu || args.activation == Activation::kSigmoid);
  const bool sigmoid = args.activation == Activation::kSigmoid;
  const auto launch = [&](const auto* gate) {
    using Output = GatedRmsOutput<std::decay_t<decltype(*gate)>>;
    LaunchNormForProduct(device, args.x, args.y, rows, dim, fours,
                         Output{weight, span, gate, args.eps, sigmoid}, "GatedRmsNorm");
  };
  if (args.gate.dtype == DType::kBF16) return launch(args.gate.as<const __nv_bfloat16>());
  CHECK(args.gate.dtype == DType::kF32);
  launch(args.gate.as<const float>());
}

void SwiGlu(Device& device, const SwiGluArgs& args) {
  const int64_t n = args.gate.shape.elements();
  if (n == 0) return;
  const int64_t fours = InFours(4, args.gate, args.up, args.y) ? n / 4 : 0;
  const auto launch = [&](auto kernel, auto* y) {
    LaunchOverlapping(device, "SwiGlu", kernel, BlocksFor(fours + n - 4 * fours, kThreads),
                      kThreads, 0, 1, args.gate.as<const float>(), args.up.as<const float>(), y,
                      fours, n);
  };
  if (args.y.dtype == DType::kBF16) {
    launch(SwiGluKernel<__nv_bfloat16>, args.y.as<__nv_bfloat16>());
  } else {
    launch(SwiGluKernel<float>, args.y.as<float>());
  }
}

void DeltaGates(Device& device, const DeltaGatesArgs& args) {
  const int64_t n = args.log_decay.shape.elements();
  if (n == 0) return;
  DeltaGatesKernel<<<BlocksFor(n, kThreads), kThreads, 0, device.stream()>>>(
      args.a.as<const float>(), args.b.as<const float>(), args.a_log.as<const float>(),
      args.dt_bias.as<const float>(), args.entry_rows.as<const int32_t>(), args.beta_scale, n,
      static_cast<int>(args.a.shape[1]), args.log_decay.as<float>(), args.beta.as<float>());
  device.Check(cudaGetLastError(), "DeltaGates");
}

}  // namespace mneme::cuda::dense
