// Norm, router and choice of a decode step of many rows, a block to a row; and what lies between
// the convolutions and the delta rule.
#include <cmath>
#include <cstdint>

#include "kernels/cuda/decode_step.h"
#include "kernels/cuda/few_rows.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/route_rank.cuh"

namespace mneme::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

struct RouteParams {
  const float* hidden;
  const float* norm;
  float norm_eps;
  int model_dim, memories, top_k;
  const void* router;
  bool round_logits;
  const int32_t* forced;
  float* x;
  int32_t* indices;
  float* weights;
};

template <typename T, int kPiece>
__global__ void __launch_bounds__(kThreads) RouteKernel(const __grid_constant__ RouteParams p) {
  extern __shared__ __align__(16) float x[];  // [model_dim]
  __shared__ float sums[kWarps];
  __shared__ float logits[kMaxStepMemories];
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t row = blockIdx.x;
  const float* hidden = p.hidden + row * p.model_dim;
  float squares = 0;
  for (int i = threadIdx.x; i < p.model_dim; i += kThreads) {
    const float h = hidden[i];
    squares = fmaf(h, h, squares);
    x[PlaceOf<kPiece>(i, p.model_dim)] = h;
  }
  const float sum = BlockSum<kThreads>(squares, sums);
  const float scale = rsqrtf(sum / static_cast<float>(p.model_dim) + p.norm_eps);
  for (int i = threadIdx.x; i < p.model_dim; i += kThreads) {
    float& at = x[PlaceOf<kPiece>(i, p.model_dim)];
    const float value = at * scale * p.norm[i];
    at = value;
    p.x[row * p.model_dim + i] = value;
  }
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  for (int m = threadIdx.x / kWarp; m < p.memories; m += kWarps) {
    const T* const rows[1] = {static_cast<const T*>(p.router) + int64_t{m} * p.model_dim};
    const float* const entries[1] = {x};
    float sums[1] = {};
    WeightRound<T, kPiece, 1> weights;
    weights.Load(rows, lane * kPiece, p.model_dim);
    AddProducts(rows, weights, entries, p.model_dim, lane, sums);
    const float dot = WarpSum(sums[0]);
    if (lane == 0) {
      logits[m] = p.round_logits ? __bfloat162float(__float2bfloat16_rn(dot)) : dot;
    }
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  int chosen[kMaxStepMemories];
  uint64_t last = ~uint64_t{0};
  float largest = -INFINITY;
  for (int j = 0; j < p.top_k; ++j) {
    if (p.forced != nullptr) {
      chosen[j] = p.forced[row * p.top_k + j];
    } else {
      uint64_t best = 0;
      for (int m = 0; m < p.memories; ++m) {
        const uint64_t rank = RouteRank(logits[m], m);
        if (rank < last && rank > best) best = rank;
      }
      chosen[j] = MemoryOfRank(best);
      last = best;
    }
    largest = fmaxf(largest, logits[chosen[j]]);
  }
  float total = 0;
  for (int j = 0; j < p.top_k; ++j) total += expf(logits[chosen[j]] - largest);
  for (int j = 0; j < p.top_k; ++j) {
    p.indices[row * p.top_k + j] = chosen[j];
    p.weights[row * p.top_k + j] = expf(logits[chosen[j]] - largest) / total;
  }
}

struct GateParams {
  float *q, *k;
  int entries, heads, key_dim, value_heads;
  const float *raw_a, *raw_b, *a_log, *dt_bias;
  const int32_t* entry_rows;
  float beta_scale;
  float *log_decay, *beta;
};

// A warp to a head of an entry.
__global__ void __launch_bounds__(kThreads) GateKernel(const __grid_constant__ GateParams p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int i = blockIdx.x * kWarps + threadIdx.x / kWarp;
  if (i >= p.entries * p.heads) return;
  const int entry = i / p.heads, head = i % p.heads, lane = threadIdx.x % kWarp;
  float* const vectors[] = {p.q + int64_t{i} * p.key_dim, p.k + int64_t{i} * p.key_dim};
  const float lengths[] = {rsqrtf(static_cast<float>(p.key_dim)), 1.0f};
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    float squares = 0;
    for (int c = lane; c < p.key_dim; c += kWarp) {
      squares = fmaf(vectors[n][c], vectors[n][c], squares);
    }
    const float scale = lengths[n] / sqrtf(WarpSum(squares) + 1e-6f);
    for (int c = lane; c < p.key_dim; c += kWarp) vectors[n][c] *= scale;
  }
  const int group = p.value_heads / p.heads;
  const int64_t from = p.entry_rows == nullptr ? entry : p.entry_rows[entry];
  for (int h = head * group + lane; h < (head + 1) * group; h += kWarp) {
    const int64_t at = int64_t{entry} * p.value_heads + h;
    const float b = p.raw_b[from * p.value_heads + h];
    p.log_decay[at] = LogDecay(p.raw_a[from * p.value_heads + h], p.a_log[h], p.dt_bias[h]);
    p.beta[at] = p.beta_scale * Sigmoid(b);
  }
}

}  // namespace

void LaunchStepRoutes(Device& device, const DeltaMixerStepArgs& args, const StepBuffers& buffers) {
  RouteParams p = {};
  p.hidden = args.hidden.as<const float>();
  p.norm = args.norm.as<const float>();
  p.norm_eps = args.norm_eps;
  p.model_dim = static_cast<int>(args.hidden.shape[1]);
  p.memories = args.memories;
  p.top_k = args.memories == 0 ? 0 : args.top_k;
  p.router = args.router.data;
  p.round_logits = args.round_logits == DType::kBF16;
  p.forced = args.forced.as<const int32_t>();
  p.x = buffers.x;
  p.indices = args.indices.as<int32_t>();
  p.weights = args.weights.as<float>();
  const auto launch = [&](auto kernel) {
    LaunchOverlapping(device, "routes of a decode step", kernel, buffers.rows, kThreads,
                      static_cast<int64_t>(sizeof(float)) * p.model_dim, 1, p);
  };
  const bool aligned = p.model_dim % 8 == 0;
  switch (args.router.dtype) {
    case DType::kBF16:
      return aligned ? launch(RouteKernel<__nv_bfloat16, 8>)
                     : launch(RouteKernel<__nv_bfloat16, 1>);
    case DType::kF16:
      return aligned ? launch(RouteKernel<__half, 8>) : launch(RouteKernel<__half, 1>);
    default:
      return aligned ? launch(RouteKernel<float, 4>) : launch(RouteKernel<float, 1>);
  }
}

void LaunchStepGates(Device& device, const DeltaMixerStepArgs& args, const StepBuffers& buffers,
                     const float* raw_a, const float* raw_b, const int32_t* entry_rows) {
  GateParams p = {};
  p.q = buffers.q;
  p.k = buffers.k;
  p.entries = buffers.rows * buffers.columns;
  p.heads = args.heads;
  p.key_dim = args.key_dim;
  p.value_heads = args.value_heads;
  p.raw_a = raw_a;
  p.raw_b = raw_b;
  p.a_log = args.a_log.as<const float>();
  p.dt_bias = args.dt_bias.as<const float>();
  p.entry_rows = entry_rows;
  p.beta_scale = args.beta_scale;
  p.log_decay = buffers.a;
  p.beta = buffers.b;
  LaunchOverlapping(device, "gates of a decode step", GateKernel,
                    (p.entries * p.heads + kWarps - 1) / kWarps, kThreads, 0, 1, p);
}

}  // namespace mneme::cuda
