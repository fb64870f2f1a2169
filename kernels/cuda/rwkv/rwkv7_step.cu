// One token through the memories of an RWKV-7 layer. A block has a head: its warps make the gates,
// each for itself, take their rows of the matrix through the token, and leave what they read for
// one of them to norm and to gate.
#include <cstdint>
#include <vector>

#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/state_dispatch.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/step.h"
#include "kernels/cuda/matrix_memory/rules/pairs.cuh"
#include "kernels/cuda/matrix_memory/rules/rows.cuh"
#include "kernels/cuda/matrix_memory/rules/rules.h"
#include "kernels/cuda/rwkv/gates.cuh"
#include "kernels/cuda/rwkv/rwkv.h"

namespace mneme::cuda::rwkv {
namespace {

namespace rules = matrix_memory::rules;

constexpr int kWarps = 8, kThreads = kWarps * kWarp;

struct StepProblem {
  rules::Problem memory;
  // Rwkv7Gates
  const float *decay, *rate, *decay_bias, *rate_bias, *k_k, *k_a;
  float key_eps, key_least;
  // ValueResidual; no first: none
  const float *first, *residual, *residual_bias;
  // Rwkv7Output
  const float *weight, *bias, *r_k, *gate;
  float eps;
};

// A lane's part of what the gates of a head are made from, and of the gates.
template <int kDim>
struct HeadGates {
  static constexpr int kSize = matrix_memory::Lane<kDim>::kSize;

  __device__ void LoadWeights(const StepProblem& p, int channels) {
    matrix_memory::LoadRow<kDim>(p.decay_bias + channels, decay_bias);
    matrix_memory::LoadRow<kDim>(p.rate_bias + channels, rate_bias);
    matrix_memory::LoadRow<kDim>(p.k_k + channels, k_k);
    matrix_memory::LoadRow<kDim>(p.k_a + channels, k_a);
  }
  __device__ void LoadToken(const StepProblem& p, int64_t at) {
    matrix_memory::LoadRow<kDim>(p.memory.k.data + at, k);
    matrix_memory::LoadRow<kDim>(p.memory.q.data + at, q);
    matrix_memory::LoadRow<kDim>(p.decay + at, decay);
    matrix_memory::LoadRow<kDim>(p.rate + at, rate);
  }
  // By a whole warp. From then on k is the key that is written, and `decay` the log decay.
  __device__ void Make(const StepProblem& p) {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const float z = k[i] * k_k[i];
      squares += z * z;
    }
    const float norm = KeyNorm(WarpSum(squares), p.key_eps, p.key_least);
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const Gates gates =
          GatesOf(decay[i] + decay_bias[i], rate[i] + rate_bias[i], k[i], k_k[i], k_a[i], norm);
      decay[i] = gates.log_decay;
      c[i] = gates.c;
      e[i] = gates.e;
      k[i] = gates.k;
    }
  }

  float k[kSize], q[kSize], decay[kSize], c[kSize], e[kSize];
  float rate[kSize], decay_bias[kSize], rate_bias[kSize], k_k[kSize], k_a[kSize];
};

// A lane's part of what a head's reads are normed and gated by.
template <int kDim>
struct HeadOutput {
  static constexpr int kSize = matrix_memory::Lane<kDim>::kSize;
  static_assert(matrix_memory::Lane<kDim>::kChunks == 1);

  __device__ void LoadWeights(const StepProblem& p, int channels) {
    matrix_memory::LoadRow<kDim>(p.weight + channels, weight);
    matrix_memory::LoadRow<kDim>(p.bias + channels, bias);
    matrix_memory::LoadRow<kDim>(p.r_k + channels, r_k);
  }
  __device__ void LoadToken(const StepProblem& p, int64_t at) {
    matrix_memory::LoadRow<kDim>(p.gate + at, gate);
  }
  __device__ float Bonus(const HeadGates<kDim>& of) const {
    float bonus = 0;
#pragma unroll
    for (int i = 0; i < kSize; ++i) bonus += of.q[i] * of.k[i] * r_k[i];
    return WarpSum(bonus);
  }
  // By a whole warp; `y` is the head's.
  template <typename Y>
  __device__ void Write(float eps, float bonus, const float* reads, const float* values,
                        Y* y) const {
    float x[kSize], v[kSize], sum = 0, deviations = 0;
    matrix_memory::LoadRow<kDim>(reads, x);
    matrix_memory::LoadRow<kDim>(values, v);
#pragma unroll
    for (int i = 0; i < kSize; ++i) sum += x[i];
    const float mean = WarpSum(sum) / kDim;
#pragma unroll
    for (int i = 0; i < kSize; ++i) deviations += (x[i] - mean) * (x[i] - mean);
    const float factor = 1.0f / sqrtf(WarpSum(deviations) / kDim + eps);
    const int first = static_cast<int>(threadIdx.x) % kWarp * kSize;
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const float normed = (x[i] - mean) * factor * weight[i] + bias[i];
      y[first + i] = FromFloat<Y>((normed + bonus * v[i]) * gate[i]);
    }
  }

  float weight[kSize], bias[kSize], r_k[kSize], gate[kSize];
};

// This token's value of a channel, with the first layer's part.
__device__ inline float ValueOf(const StepProblem& p, int64_t at, int channels, int i) {
  const float v = p.memory.v.data[at + i];
  if (p.first == nullptr) return v;
  return MixValue(v, p.first[at + i], p.residual[at + i], p.residual_bias[channels + i]);
}

template <typename T, int kDim, typename Y>
__global__ void __launch_bounds__(kThreads, kDim == 64 ? 4 : 1)
    StepKernel(const __grid_constant__ StepProblem p, Y* y) {
  using Token = rules::Token<rules::GeneralKeyDecay, kDim>;
  constexpr int kRows = kDim / kWarps, kSize = Token::kSize;
  __shared__ alignas(16) float reads[kDim], values[kDim];
  LetNextKernelStart();
  if (!p.memory.early) WaitForPreviousKernel();
  rules::Piece piece;
  if (!rules::FindPiece(p.memory, blockIdx.x, piece)) {
    WaitForPreviousKernel();
    return;
  }
  // Past the cache of the multiprocessor, as in rules/rows.cuh.
  rules::WarpRows<T, kDim, kRows, matrix_memory::Cache::kGlobal> rows(p.memory, piece);
  const int64_t at = (int64_t{piece.first} * p.memory.heads + piece.head) * kDim;
  const int channels = piece.head * kDim;
  const bool finishes = threadIdx.x < kWarp;

  HeadGates<kDim> gates;
  HeadOutput<kDim> output;
  gates.LoadWeights(p, channels);
  if (finishes) output.LoadWeights(p, channels);
  if (p.memory.early) WaitForPreviousKernel();
  gates.LoadToken(p, at);
  const float v = ValueOf(p, at, channels, rows.row);
  if (finishes) output.LoadToken(p, at);

  gates.Make(p);
  Token token;
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    token.k[i] = gates.k[i];
    token.q[i] = gates.q[i];
    token.decays[i] = gates.decay[i];
    token.c[i] = gates.c[i];
    token.e[i] = gates.e[i];
  }
  token.v = v;
  token.Finish();
  const float read = p.memory.scale * rules::TakeToken(token, rows.s);
  rows.Store();
  if (threadIdx.x % kWarp < kRows) reads[rows.row] = read, values[rows.row] = v;
  __syncthreads();
  if (finishes) output.Write(p.eps, output.Bonus(gates), reads, values, y + at);
}

// Heads of 64, rows in pairs (rules/pairs.cuh): the block's first warp makes the gates and the
// others the values, while the matrix comes.
template <typename T, typename Shape, typename Y>
__global__ void __launch_bounds__(Shape::kWarps* kWarp, Shape::kMultiprocessorBlocks)
    PairStepKernel(const __grid_constant__ StepProblem p, Y* y) {
  using Rows = rules::PairRows<T, Shape::kPairs, Shape::kRounds>;
  constexpr int kDim = rules::kPairKeys, kSize = matrix_memory::Lane<kDim>::kSize;
  static_assert(Shape::kWarps > 1);
  __shared__ typename Rows::Copy copies[Shape::kWarps];
  __shared__ alignas(16) float k[kDim], q[kDim], decays[kDim], c[kDim], e[kDim];
  __shared__ alignas(16) float reads[kDim], values[kDim];
  LetNextKernelStart();
  if (!p.memory.early) WaitForPreviousKernel();
  rules::Piece piece;
  if (!rules::FindPiece(p.memory, blockIdx.x, piece)) {
    WaitForPreviousKernel();
    return;
  }
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  Rows rows(p.memory, piece, warp * Rows::kAllRows, copies[warp]);
  const int64_t at = (int64_t{piece.first} * p.memory.heads + piece.head) * kDim;
  const int channels = piece.head * kDim;
  HeadOutput<kDim> output;  // of the first warp, as the bonus
  float bonus = 0;
  if (warp == 0) {
    HeadGates<kDim> gates;
    gates.LoadWeights(p, channels);
    output.LoadWeights(p, channels);
    if (p.memory.early) WaitForPreviousKernel();
    gates.LoadToken(p, at);
    output.LoadToken(p, at);
    gates.Make(p);
    const auto save = [lane](const float(&from)[kSize], float* to) {
      reinterpret_cast<float2*>(to)[lane] = {from[0], from[1]};
    };
    save(gates.k, k);
    save(gates.q, q);
    save(gates.decay, decays);
    save(gates.c, c);
    save(gates.e, e);
    bonus = output.Bonus(gates);
  } else {
    if (p.memory.early) WaitForPreviousKernel();
    for (int i = static_cast<int>(threadIdx.x) - kWarp; i < kDim;
         i += (Shape::kWarps - 1) * kWarp) {
      values[i] = ValueOf(p, at, channels, i);
    }
  }
  __syncthreads();
  rules::PairToken token;
  rules::PairToken::Load(k, token.k);
  rules::PairToken::Load(q, token.q);
  rules::PairToken::Load(decays, token.decays);
  rules::PairToken::Load(c, token.c);
  rules::PairToken::Load(e, token.e);
  token.Finish();
  Rows::ForRounds([&](auto round) {
    const int row = rows.row + round * Rows::kRows;
    const float read = p.memory.scale * rows.template Take<round>(token, values[row]);
    if (Rows::Finishes()) reads[row] = read;
  });
  __syncthreads();
  if (warp == 0) output.Write(p.eps, bonus, reads, values, y + at);
}

}  // namespace

bool Rwkv7LayerStep(Device& device, const Rwkv7LayerStepArgs& layer) {
  const Rwkv7StepArgs& args = layer.step;
  const MatrixMemoryArgs& memory = args.memory;
  StepProblem p = {};
  p.memory = rules::MakeProblem(memory);
  const int dim = p.memory.key_dim;
  const bool alike = p.memory.q.group == 1 && p.memory.k.group == 1 && p.memory.v.group == 1;
  if (memory.segments.longest != 1 || memory.pending.capacity > 0 ||
      !rules::GeneralKeyDecay::Is(memory.rule) || !alike || (dim != 64 && dim != 128) ||
      p.memory.value_dim != dim || !rules::Supports(p.memory, memory.state.dtype) ||
      !AreAligned(args.gates.decay, args.gates.rate, args.gates.decay_bias, args.gates.rate_bias,
                  args.gates.k_k, args.gates.k_a, args.output.weight, args.output.bias,
                  args.output.r_k, args.output.gate)) {
    return false;
  }
  if (memory.segments.count == 0 || memory.out.shape[0] == 0) return true;
  std::vector<ActivatedProduct> low_rank;
  for (const LinearArgs& product : layer.low_rank) low_rank.push_back({.product = product});
  const bool at_once = !low_rank.empty() && linear::ActivatedProducts(device, low_rank);
  if (!at_once) linear::Linear(device, layer.low_rank);
  // The scales of int8 rows come by way of the multiprocessor's cache.
  p.memory.early = at_once && memory.state.dtype != DType::kI8;
  p.memory.lengths = rules::Lengths::kOne;
  p.memory.tiles = 1;
  p.decay = args.gates.decay.as<const float>();
  p.rate = args.gates.rate.as<const float>();
  p.decay_bias = args.gates.decay_bias.as<const float>();
  p.rate_bias = args.gates.rate_bias.as<const float>();
  p.k_k = args.gates.k_k.as<const float>();
  p.k_a = args.gates.k_a.as<const float>();
  p.key_eps = args.gates.eps;
  p.key_least = args.gates.least;
  if (!args.residual.v.empty()) {
    p.first = args.residual.first.as<const float>();
    p.residual = args.residual.gate.as<const float>();
    p.residual_bias = args.residual.bias.as<const float>();
  }
  p.weight = args.output.weight.as<const float>();
  p.bias = args.output.bias.as<const float>();
  p.r_k = args.output.r_k.as<const float>();
  p.gate = args.output.gate.as<const float>();
  p.eps = args.output.eps;
  const int blocks = p.memory.segments.count * p.memory.heads;
  const DType state = memory.state.dtype;
  const auto launch = [&]<typename Y>(void (*kernel)(StepProblem, Y*), int threads) {
    LaunchOverlapping(device, "step of RWKV-7", kernel, blocks, threads, 0, 1, p,
                      args.output.y.as<Y>());
  };
  const auto launch_for = [&]<typename Y>(Y*) {
    if (rules::GoesInPairs(p.memory, state)) {
      rules::WithPairShape(rules::PlanDecode(device, p.memory, blocks, state),
                           [&]<typename Shape>(Shape) {
                             launch(state == DType::kF32 ? PairStepKernel<float, Shape, Y>
                                                         : PairStepKernel<__half, Shape, Y>,
                                    Shape::kWarps * kWarp);
                           });
    } else if (dim == 64) {
      launch(StepKernel<int8_t, 64, Y>, kThreads);
    } else {
      ForStateType(state, [&]<typename T>() { launch(StepKernel<T, 128, Y>, kThreads); });
    }
  };
  if (args.output.y.dtype == DType::kBF16) {
    launch_for(static_cast<__nv_bfloat16*>(nullptr));
  } else {
    launch_for(static_cast<float*>(nullptr));
  }
  return true;
}

}  // namespace mneme::cuda::rwkv
