// A token's result depends on its own values only, and every sum has a fixed order.
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/common/blocks.h"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/fours.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/residual_streams/mixing.cuh"
#include "kernels/cuda/residual_streams/residual_streams.h"

namespace mneme::cuda::residual_streams {
namespace {

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

// All of them in one pass over exactly kWidth streams, four elements at a time.
template <int kWidth>
__device__ inline void SumsInOnePass(const ReadProblem& p, const float* x,
                                     float (&sums)[kWidth][kSums<kWidth>]) {
  SumsOfFours<kWidth> all;
  for (int i = 4 * threadIdx.x; i < p.dim; i += 4 * kThreads) {
    // All that is read is on its way before anything is used.
    float4 own[kWidth];
#pragma unroll
    for (int s = 0; s < kWidth; ++s) own[s] = LoadFour(x + int64_t{s} * p.dim + i);
    all.Add(own, SumsOfFours<kWidth>::Load(p, i));
  }
  all.Finish(sums);
}

// A token's input and what its streams become, of `streams` streams, kWidth at most.
template <int kWidth>
__device__ inline void MixElements(const ReadProblem& p, int streams, const Mixing<kWidth>& mixing,
                                   float* x, float* y) {
  for (int i = threadIdx.x; i < p.dim; i += kThreads) {
    float own[kWidth];
    float input = 0;
    for (int s = 0; s < streams; ++s) {
      own[s] = x[int64_t{s} * p.dim + i];
      input = fmaf(mixing.pre[s], own[s], input);
    }
    y[i] = input;
    if (p.post == nullptr) continue;
    for (int t = 0; t < streams; ++t) {
      float mixed = 0;
      for (int s = 0; s < streams; ++s) mixed = fmaf(mixing.residual[s][t], own[s], mixed);
      x[int64_t{t} * p.dim + i] = mixed;
    }
  }
}

// The same of exactly kWidth streams, four elements at a time.
template <int kWidth>
__device__ inline void MixFours(const ReadProblem& p, const Mixing<kWidth>& mixing, float* x,
                                float* y) {
  for (int i = 4 * threadIdx.x; i < p.dim; i += 4 * kThreads) {
    float4 own[kWidth], input = {};
#pragma unroll
    for (int s = 0; s < kWidth; ++s) own[s] = LoadFour(x + int64_t{s} * p.dim + i);
#pragma unroll
    for (int s = 0; s < kWidth; ++s) input = AddTimes(mixing.pre[s], own[s], input);
    SaveFour(y + i, input);
    if (p.post == nullptr) continue;
#pragma unroll
    for (int t = 0; t < kWidth; ++t) {
      float4 mixed = {};
#pragma unroll
      for (int s = 0; s < kWidth; ++s) mixed = AddTimes(mixing.residual[s][t], own[s], mixed);
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
  __shared__ Mixing<kWidth> mixing;
  const int streams = kFours ? kWidth : p.streams;
  MixingOfLane<kWidth> of_lane(p, streams);
  WaitForPreviousKernel();
  float* const x = p.x + int64_t{blockIdx.x} * streams * p.dim;
  if constexpr (kFours) {
    SumsInOnePass<kWidth>(p, x, sums);
  } else {
    SumsByWarps<kWidth>(p, x, sums);
  }
  __syncthreads();
  if (threadIdx.x < kWarp) of_lane.Find(p, blockIdx.x, sums, &mixing);
  __syncthreads();
  float* const y = p.y + int64_t{blockIdx.x} * p.dim;
  if constexpr (kFours) {
    MixFours<kWidth>(p, mixing, x, y);
  } else {
    MixElements<kWidth>(p, streams, mixing, x, y);
  }
}

}  // namespace

void ExpandStreams(Device& device, const ExpandStreamsArgs& args) {
  const int64_t n = args.y.shape.elements();
  if (n == 0) return;
  CHECK(args.y.dtype == DType::kF32) << "ExpandStreams";
  LaunchOverlapping(device, "ExpandStreams", ExpandKernel, BlocksFor(n, kThreads), kThreads, 0, 1,
                    args.x.as<const float>(), args.embedding.as<const float>(), args.y.as<float>(),
                    n, static_cast<int>(args.y.shape[2]), args.y.shape[1] * args.y.shape[2]);
}

void ReadStreams(Device& device, const ReadStreamsArgs& args) {
  const ReadProblem problem = ProblemOf(args);
  const auto tokens = static_cast<int>(args.x.shape[0]);
  if (tokens == 0) return;
  CHECK(args.x.dtype == DType::kF32) << "ReadStreams";
  CHECK_LE(problem.streams, kMaxResidualStreams);
  const bool fours = InFours(args);
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
  LaunchOverlapping(device, "WriteStreams", WriteKernel, BlocksFor(n, kThreads), kThreads, 0, 1,
                    args.x.as<const float>(), args.post.as<const float>(), args.y.as<float>(), n,
                    static_cast<int>(args.y.shape[2]), args.y.shape[1] * args.y.shape[2]);
}

void SumStreams(Device& device, const SumStreamsArgs& args) {
  const int64_t n = args.y.shape.elements();
  if (n == 0) return;
  CHECK(args.y.dtype == DType::kF32) << "SumStreams";
  LaunchOverlapping(device, "SumStreams", SumKernel, BlocksFor(n, kThreads), kThreads, 0, 1,
                    args.x.as<const float>(), args.y.as<float>(), n,
                    static_cast<int>(args.x.shape[2]), static_cast<int>(args.x.shape[1]));
}

void MixViews(Device& device, const MixViewsArgs& args) {
  const int64_t n = args.y.shape.elements();
  if (n == 0) return;
  CHECK(args.y.dtype == DType::kF32) << "MixViews";
  LaunchOverlapping(device, "MixViews", MixViewsKernel, BlocksFor(n, kThreads), kThreads, 0, 1,
                    args.x.as<const float>(), args.weights.as<const float>(), args.y.as<float>(), n,
                    static_cast<int>(args.x.shape[2]), args.x.shape[1],
                    static_cast<int>(args.y.shape[0]), static_cast<int>(args.x.shape[0]));
}

}  // namespace mneme::cuda::residual_streams
