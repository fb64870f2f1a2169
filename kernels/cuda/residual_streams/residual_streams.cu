// A token's result depends on its own values only, and every sum has a fixed order.
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/fours.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/residual_streams/residual_streams.h"

namespace mneme::cuda::residual_streams {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kSinkhornRounds = 20;
constexpr float kLeastNorm = 1e-12f;

int BlocksFor(int64_t items) { return static_cast<int>((items + kThreads - 1) / kThreads); }

// --- Elements by themselves ----------------------------------------------------------------------

// y [tokens, streams, dim]
__global__ void __launch_bounds__(kThreads)
    ExpandKernel(const float* x, const float* embedding, float* y, int64_t n, int dim,
                 int64_t of_token) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  y[i] = x[i / of_token * dim + i % dim] + embedding[i % of_token];
}

__global__ void __launch_bounds__(kThreads)
    WriteKernel(const float* x, const float* post, float* y, int64_t n, int dim, int64_t of_token) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  y[i] = fmaf(post[i / dim], x[i / of_token * dim + i % dim], y[i]);
}

// y [tokens, dim]
__global__ void __launch_bounds__(kThreads)
    SumKernel(const float* x, float* y, int64_t n, int dim, int streams) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const float* from = x + i / dim * streams * dim + i % dim;
  float sum = from[0];
  for (int s = 1; s < streams; ++s) sum += from[int64_t{s} * dim];
  y[i] = sum;
}

// y [views, tokens, dim]
__global__ void __launch_bounds__(kThreads)
    MixViewsKernel(const float* x, const float* weights, float* y, int64_t n, int dim,
                   int64_t tokens, int views, int count) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t row = i / dim, token = row % tokens, view = row / tokens;
  const float* weight = weights + (token * views + view) * count;
  const float* from = x + token * dim + i % dim;
  float sum = 0;
  for (int j = 0; j < count; ++j) sum = fmaf(weight[j], from[j * tokens * dim], sum);
  y[i] = sum;
}

// --- Mixing --------------------------------------------------------------------------------------

struct ReadProblem {
  StreamMixing::Kind kind;
  const float *gain, *alpha, *alpha_weight, *beta, *beta_weight, *scales;
  float *x, *y, *post;  // no post: nothing is written back
  int streams, dim;
};

// A stream's sums: its squares, the products with the rows of alpha_weight, and that
// with beta_weight.
template <int kWidth>
constexpr int kSums = kWidth + 3;

// Warps take a sum each.
template <int kWidth>
__device__ inline void SumsByWarps(const ReadProblem& p, const float* x,
                                   float (&sums)[kWidth][kSums<kWidth>]) {
  const int lane = threadIdx.x % kWarp;
  const int of_stream = p.streams + 2 + (p.post != nullptr ? 1 : 0);
  for (int task = threadIdx.x / kWarp; task < p.streams * of_stream; task += kWarps) {
    const int s = task / of_stream, j = task % of_stream;
    const bool is_beta = j == p.streams + 2;
    const float* from = x + int64_t{s} * p.dim;
    const float* weight = is_beta ? p.beta_weight : p.alpha_weight + max(j - 1, 0) * int64_t{p.dim};
    float sum = 0;
    for (int i = lane; i < p.dim; i += kWarp) {
      const float v = from[i];
      sum = fmaf(v, j == 0 ? v : (1.0f + p.gain[i]) * weight[i], sum);
    }
    sum = WarpSum(sum);
    if (lane == 0) sums[s][is_beta ? kWidth + 2 : j] = sum;
  }
}

__device__ inline float Dot(float4 a, float4 b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// All of them in one pass over exactly kWidth streams, four elements at a time.
template <int kWidth>
__device__ inline void SumsInOnePass(const ReadProblem& p, const float* x,
                                     float (&sums)[kWidth][kSums<kWidth>]) {
  constexpr int kOfStream = 8, kAll = kWidth == 3 ? kWarp : kWidth * kOfStream;
  static_assert(kSums<kWidth> <= kOfStream && kAll <= kWarp);
  __shared__ float parts[kWarps][kAll];
  float of_thread[kAll] = {};
  const float* const beta = p.post != nullptr ? p.beta_weight : p.gain;
  for (int i = 4 * threadIdx.x; i < p.dim; i += 4 * kThreads) {
    // All that is read is on its way before anything is used.
    float4 own[kWidth], weights[kWidth + 2];
#pragma unroll
    for (int s = 0; s < kWidth; ++s) own[s] = LoadFour(x + int64_t{s} * p.dim + i);
    float4 gain = LoadFour(p.gain + i);
#pragma unroll
    for (int j = 0; j <= kWidth; ++j) {
      weights[j] = LoadFour(p.alpha_weight + j * int64_t{p.dim} + i);
    }
    weights[kWidth + 1] = LoadFour(beta + i);
    gain = {1.0f + gain.x, 1.0f + gain.y, 1.0f + gain.z, 1.0f + gain.w};
#pragma unroll
    for (int s = 0; s < kWidth; ++s) {
      of_thread[s * kOfStream] = Dot(own[s], own[s], of_thread[s * kOfStream]);
      own[s] = {gain.x * own[s].x, gain.y * own[s].y, gain.z * own[s].z, gain.w * own[s].w};
#pragma unroll
      for (int j = 0; j < kWidth + 2; ++j) {
        float& sum = of_thread[s * kOfStream + 1 + j];
        sum = Dot(own[s], weights[j], sum);
      }
    }
  }
  const int lane = threadIdx.x % kWarp;
  parts[threadIdx.x / kWarp][lane / (kWarp / kAll)] = WarpSums(of_thread, lane);
  __syncthreads();
  const int s = threadIdx.x / kOfStream, j = threadIdx.x % kOfStream;
  if (s >= kWidth || j >= kSums<kWidth>) return;
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += parts[warp][threadIdx.x];
  sums[s][j] = sum;
}

// Sum over lanes that differ in the bits below kWidth.
template <int kWidth>
__device__ inline float GroupSum(float x) {
#pragma unroll
  for (int offset = kWidth / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(kAllLanes, x, offset);
  }
  return x;
}

__device__ inline float Reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The rounds of S, each element's exponential being there. By one warp, whose lane t < kWidth has
// column t of the matrix. Elements beyond it are zeros.
template <int kWidth>
__device__ inline void BalanceColumns(float (&column)[kWidth]) {
  for (int round = 0; round < kSinkhornRounds; ++round) {
    float sum = 0;
#pragma unroll
    for (int s = 0; s < kWidth; ++s) sum += column[s];
    const float by = Reciprocal(fmaxf(sum, kLeastNorm));
#pragma unroll
    for (int s = 0; s < kWidth; ++s) column[s] *= by;
#pragma unroll
    for (int s = 0; s < kWidth; ++s) {
      column[s] *= Reciprocal(fmaxf(GroupSum<kWidth>(column[s]), kLeastNorm));
    }
  }
}
// The same of a small matrix, all of which is in every lane: a shuffle takes longer than its sums.
template <int kWidth>
__device__ inline void BalanceMatrix(float (&column)[kWidth], int lane) {
  float all[kWidth][kWidth];
#pragma unroll
  for (int s = 0; s < kWidth; ++s) {
#pragma unroll
    for (int t = 0; t < kWidth; ++t) all[s][t] = __shfl_sync(kAllLanes, column[s], t);
  }
#pragma unroll 1
  for (int round = 0; round < kSinkhornRounds; ++round) {
#pragma unroll
    for (int t = 0; t < kWidth; ++t) {
      float sum = 0;
#pragma unroll
      for (int s = 0; s < kWidth; ++s) sum += all[s][t];
      const float by = Reciprocal(fmaxf(sum, kLeastNorm));
#pragma unroll
      for (int s = 0; s < kWidth; ++s) all[s][t] *= by;
    }
#pragma unroll
    for (int s = 0; s < kWidth; ++s) {
      float sum = 0;
#pragma unroll
      for (int t = 0; t < kWidth; ++t) sum += all[s][t];
      const float by = Reciprocal(fmaxf(sum, kLeastNorm));
#pragma unroll
      for (int t = 0; t < kWidth; ++t) all[s][t] *= by;
    }
  }
#pragma unroll
  for (int s = 0; s < kWidth; ++s) {
#pragma unroll
    for (int t = 0; t < kWidth; ++t) column[s] = lane == t ? all[s][t] : column[s];
  }
}

template <int kWidth>
__device__ inline void MakeDoublyStochastic(float (&column)[kWidth], int streams, int lane) {
  float largest = column[0];
#pragma unroll
  for (int s = 1; s < kWidth; ++s) {
    if (s < streams) largest = fmaxf(largest, column[s]);
  }
#pragma unroll
  for (int s = 0; s < kWidth; ++s) {
    column[s] = s < streams && lane < streams ? expf(column[s] - largest) : 0.0f;
  }
  if constexpr (kWidth <= 4) {
    BalanceMatrix<kWidth>(column, lane);
  } else {
    BalanceColumns<kWidth>(column);
  }
}

// Sets the weights that this block reads, which nobody writes, on their way while the kernel ahead
// runs.
__device__ inline void PrefetchWeights(const ReadProblem& p) {
  const auto prefetch = [](const float* from) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
  };
  constexpr int kLine = 32;  // numbers
  for (int i = kLine * threadIdx.x; i < p.dim; i += kLine * kThreads) {
    prefetch(p.gain + i);
    if (p.post != nullptr) prefetch(p.beta_weight + i);
    for (int j = 0; j <= p.streams; ++j) prefetch(p.alpha_weight + j * int64_t{p.dim} + i);
  }
}

// A token's input and what its streams become, of `streams` streams, kWidth at most.
template <int kWidth>
__device__ inline void MixElements(const ReadProblem& p, int streams, const float (&pre)[kWidth],
                                   const float (&residual)[kWidth][kWidth], float* x, float* y) {
  for (int i = threadIdx.x; i < p.dim; i += kThreads) {
    float own[kWidth];
    float input = 0;
    for (int s = 0; s < streams; ++s) {
      own[s] = x[int64_t{s} * p.dim + i];
      input = fmaf(pre[s], own[s], input);
    }
    y[i] = input;
    if (p.post == nullptr) continue;
    for (int t = 0; t < streams; ++t) {
      float mixed = 0;
      for (int s = 0; s < streams; ++s) mixed = fmaf(residual[s][t], own[s], mixed);
      x[int64_t{t} * p.dim + i] = mixed;
    }
  }
}

__device__ inline float4 AddTimes(float by, float4 x, float4 sum) {
  return {fmaf(by, x.x, sum.x), fmaf(by, x.y, sum.y), fmaf(by, x.z, sum.z), fmaf(by, x.w, sum.w)};
}

// The same of exactly kWidth streams, four elements at a time.
template <int kWidth>
__device__ inline void MixFours(const ReadProblem& p, const float (&pre)[kWidth],
                                const float (&residual)[kWidth][kWidth], float* x, float* y) {
  for (int i = 4 * threadIdx.x; i < p.dim; i += 4 * kThreads) {
    float4 own[kWidth], input = {};
#pragma unroll
    for (int s = 0; s < kWidth; ++s) own[s] = LoadFour(x + int64_t{s} * p.dim + i);
#pragma unroll
    for (int s = 0; s < kWidth; ++s) input = AddTimes(pre[s], own[s], input);
    SaveFour(y + i, input);
    if (p.post == nullptr) continue;
#pragma unroll
    for (int t = 0; t < kWidth; ++t) {
      float4 mixed = {};
#pragma unroll
      for (int s = 0; s < kWidth; ++s) mixed = AddTimes(residual[s][t], own[s], mixed);
      SaveFour(x + int64_t{t} * p.dim + i, mixed);
    }
  }
}

// One block per token; of kWidth streams or fewer, if kFours exactly as many, whose rows are taken
// in fours. Without, kWidth is a power of two.
template <int kWidth, bool kFours>
__global__ void __launch_bounds__(kThreads) ReadKernel(const __grid_constant__ ReadProblem p) {
  LetNextKernelStart();
  PrefetchWeights(p);
  __shared__ float sums[kWidth][kSums<kWidth>];
  __shared__ float pre[kWidth], residual[kWidth][kWidth];
  const int streams = kFours ? kWidth : p.streams;
  const int lane = threadIdx.x % kWarp;
  const bool writes = p.post != nullptr;
  // The numbers of the stream that the lane is, and of its column of the matrix. Weights, so known
  // already.
  const bool is_stream = lane < streams;
  const float pre_alpha = is_stream ? p.alpha[lane * (1 + streams)] : 0;
  const float beta = is_stream && writes ? p.beta[lane] : 0;
  const float pre_scale = p.scales[0], residual_scale = p.scales[1], post_scale = p.scales[2];
  float column[kWidth];
#pragma unroll
  for (int s = 0; s < kWidth; ++s) {
    column[s] = is_stream && s < streams ? p.alpha[s * (1 + streams) + 1 + lane] : 0;
  }
  WaitForPreviousKernel();
  float* const x = p.x + int64_t{blockIdx.x} * streams * p.dim;
  if constexpr (kFours) {
    SumsInOnePass<kWidth>(p, x, sums);
  } else {
    SumsByWarps<kWidth>(p, x, sums);
  }
  __syncthreads();
  if (threadIdx.x < kWarp) {
    const bool dynamic = p.kind == StreamMixing::Kind::kDynamic;
    const float root = sqrtf(static_cast<float>(p.dim));
    // Each lane has the length of its stream.
    const float length = fmaxf(sqrtf(is_stream ? sums[lane][0] : 1.0f), kLeastNorm);
    const float by_length = root / length;
    const auto bounded = [&](float t) { return dynamic ? tanhf(t) : t; };
    if (is_stream) {
      const float a = fmaf(pre_scale, bounded(sums[lane][1] * by_length), pre_alpha);
      pre[lane] = dynamic ? a : Sigmoid(a);
      if (writes) {
        const float u = fmaf(post_scale, bounded(sums[lane][kWidth + 2] * by_length), beta);
        p.post[int64_t{blockIdx.x} * streams + lane] = dynamic ? u : 2.0f * Sigmoid(u);
      }
    }
    if (writes) {
#pragma unroll
      for (int s = 0; s < kWidth; ++s) {
        const float of_stream = __shfl_sync(kAllLanes, by_length, s);
        if (!is_stream || s >= streams) continue;
        column[s] = p.kind == StreamMixing::Kind::kSum
                        ? 1.0f
                        : fmaf(residual_scale, bounded(sums[s][2 + lane] * of_stream), column[s]);
      }
      if (p.kind == StreamMixing::Kind::kConstrained) {
        MakeDoublyStochastic<kWidth>(column, streams, lane);
      }
#pragma unroll
      for (int s = 0; s < kWidth; ++s) {
        if (lane < kWidth) residual[s][lane] = column[s];
      }
    }
  }
  __syncthreads();
  float* const y = p.y + int64_t{blockIdx.x} * p.dim;
  if constexpr (kFours) {
    MixFours<kWidth>(p, pre, residual, x, y);
  } else {
    MixElements<kWidth>(p, streams, pre, residual, x, y);
  }
}

}  // namespace

void ExpandStreams(Device& device, const ExpandStreamsArgs& args) {
  const int64_t n = args.y.shape.elements();
  if (n == 0) return;
  CHECK(args.y.dtype == DType::kF32) << "ExpandStreams";
  LaunchOverlapping(device, "ExpandStreams", ExpandKernel, BlocksFor(n), kThreads, 0, 1,
                    args.x.as<const float>(), args.embedding.as<const float>(), args.y.as<float>(),
                    n, static_cast<int>(args.y.shape[2]), args.y.shape[1] * args.y.shape[2]);
}

void ReadStreams(Device& device, const ReadStreamsArgs& args) {
  const StreamMixing& mixing = args.mixing;
  const bool writes = !mixing.beta.empty();
  const ReadProblem problem = {.kind = mixing.kind,
                               .gain = mixing.gain.as<const float>(),
                               .alpha = mixing.alpha.as<const float>(),
                               .alpha_weight = mixing.alpha_weight.as<const float>(),
                               .beta = mixing.beta.as<const float>(),
                               .beta_weight = mixing.beta_weight.as<const float>(),
                               .scales = mixing.scales.as<const float>(),
                               .x = args.x.as<float>(),
                               .y = args.y.as<float>(),
                               .post = writes ? args.post.as<float>() : nullptr,
                               .streams = static_cast<int>(args.x.shape[1]),
                               .dim = static_cast<int>(args.x.shape[2])};
  const auto tokens = static_cast<int>(args.x.shape[0]);
  if (tokens == 0) return;
  CHECK(args.x.dtype == DType::kF32) << "ReadStreams";
  CHECK_LE(problem.streams, kMaxResidualStreams);
  const bool fours = InFours(problem.dim, args.x, mixing.gain, mixing.alpha_weight) &&
                     (!writes || AreAligned(mixing.beta_weight));
  constexpr void (*kOfFours[])(ReadProblem) = {ReadKernel<1, true>, ReadKernel<2, true>,
                                               ReadKernel<3, true>, ReadKernel<4, true>};
  const auto kernel = fours && problem.streams <= 4 ? kOfFours[problem.streams - 1]
                      : problem.streams <= 4        ? ReadKernel<4, false>
                      : problem.streams <= 8        ? ReadKernel<8, false>
                                                    : ReadKernel<kMaxResidualStreams, false>;
  LaunchOverlapping(device, "ReadStreams", kernel, tokens, kThreads, 0, 1, problem);
}

void WriteStreams(Device& device, const WriteStreamsArgs& args) {
  const int64_t n = args.y.shape.elements();
  if (n == 0) return;
  CHECK(args.y.dtype == DType::kF32) << "WriteStreams";
  LaunchOverlapping(device, "WriteStreams", WriteKernel, BlocksFor(n), kThreads, 0, 1,
                    args.x.as<const float>(), args.post.as<const float>(), args.y.as<float>(), n,
                    static_cast<int>(args.y.shape[2]), args.y.shape[1] * args.y.shape[2]);
}

void SumStreams(Device& device, const SumStreamsArgs& args) {
  const int64_t n = args.y.shape.elements();
  if (n == 0) return;
  CHECK(args.y.dtype == DType::kF32) << "SumStreams";
  LaunchOverlapping(device, "SumStreams", SumKernel, BlocksFor(n), kThreads, 0, 1,
                    args.x.as<const float>(), args.y.as<float>(), n,
                    static_cast<int>(args.x.shape[2]), static_cast<int>(args.x.shape[1]));
}

void MixViews(Device& device, const MixViewsArgs& args) {
  const int64_t n = args.y.shape.elements();
  if (n == 0) return;
  CHECK(args.y.dtype == DType::kF32) << "MixViews";
  LaunchOverlapping(device, "MixViews", MixViewsKernel, BlocksFor(n), kThreads, 0, 1,
                    args.x.as<const float>(), args.weights.as<const float>(), args.y.as<float>(), n,
                    static_cast<int>(args.x.shape[2]), args.x.shape[1],
                    static_cast<int>(args.y.shape[0]), static_cast<int>(args.x.shape[0]));
}

}  // namespace mneme::cuda::residual_streams
