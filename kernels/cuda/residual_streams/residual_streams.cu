// A token's result depends on its own values only, and every sum has a fixed order.
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/common/device_utils.cuh"
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

// Sum over lanes that differ in the bits below kWidth.
template <int kWidth>
__device__ inline float GroupSum(float x) {
#pragma unroll
  for (int offset = kWidth / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(kAllLanes, x, offset);
  }
  return x;
}

// One warp does it, whose lane t < kWidth has column t of the matrix. Elements beyond it are zeros.
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
  for (int round = 0; round < kSinkhornRounds; ++round) {
    float sum = 0;
#pragma unroll
    for (int s = 0; s < kWidth; ++s) sum += column[s];
    const float divisor = fmaxf(sum, kLeastNorm);
#pragma unroll
    for (int s = 0; s < kWidth; ++s) {
      column[s] /= divisor;
      column[s] /= fmaxf(GroupSum<kWidth>(column[s]), kLeastNorm);
    }
  }
}

// One block per token; kWidth is a power of two and at least `streams`.
template <int kWidth>
__global__ void __launch_bounds__(kThreads) ReadKernel(const __grid_constant__ ReadProblem p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  // The sums of each stream: its squares, the products with the rows of alpha_weight, that with
  // beta_weight.
  __shared__ float sums[kWidth][kWidth + 3];
  __shared__ float pre[kWidth], residual[kWidth][kWidth];
  const int streams = p.streams, dim = p.dim, of_stream = streams + 3;
  const int lane = threadIdx.x % kWarp;
  const bool writes = p.post != nullptr;
  float* const x = p.x + int64_t{blockIdx.x} * streams * dim;
  for (int task = threadIdx.x / kWarp; task < streams * of_stream; task += kWarps) {
    const int s = task / of_stream, j = task % of_stream;
    if (j == streams + 2 && !writes) continue;
    const float* from = x + int64_t{s} * dim;
    const float* weight =
        j == streams + 2 ? p.beta_weight : p.alpha_weight + max(j - 1, 0) * int64_t{dim};
    float sum = 0;
    for (int i = lane; i < dim; i += kWarp) {
      const float v = from[i];
      sum = fmaf(v, j == 0 ? v : (1.0f + p.gain[i]) * weight[i], sum);
    }
    sum = WarpSum(sum);
    if (lane == 0) sums[s][j] = sum;
  }
  __syncthreads();
  if (threadIdx.x < kWarp) {
    const bool dynamic = p.kind == StreamMixing::Kind::kDynamic;
    // The j-th product of stream s.
    const auto product = [&](int s, int j) {
      const float norm = fmaxf(sqrtf(sums[s][0]), kLeastNorm);
      const float t = sums[s][j] * (sqrtf(static_cast<float>(dim)) / norm);
      return dynamic ? tanhf(t) : t;
    };
    if (lane < streams) {  // as a stream
      const float a = fmaf(p.scales[0], product(lane, 1), p.alpha[lane * (1 + streams)]);
      pre[lane] = dynamic ? a : Sigmoid(a);
      if (writes) {
        const float u = fmaf(p.scales[2], product(lane, streams + 2), p.beta[lane]);
        p.post[int64_t{blockIdx.x} * streams + lane] = dynamic ? u : 2.0f * Sigmoid(u);
      }
    }
    if (writes) {
      float column[kWidth];  // of the matrix, whose column the lane is
#pragma unroll
      for (int s = 0; s < kWidth; ++s) {
        column[s] = 0;
        if (s < streams && lane < streams) {
          column[s] =
              p.kind == StreamMixing::Kind::kSum
                  ? 1.0f
                  : fmaf(p.scales[1], product(s, 2 + lane), p.alpha[s * (1 + streams) + 1 + lane]);
        }
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
  float* const y = p.y + int64_t{blockIdx.x} * dim;
  for (int i = threadIdx.x; i < dim; i += kThreads) {
    float own[kWidth];
    float input = 0;
#pragma unroll
    for (int s = 0; s < kWidth; ++s) {
      if (s >= streams) break;
      own[s] = x[int64_t{s} * dim + i];
      input = fmaf(pre[s], own[s], input);
    }
    y[i] = input;
    if (!writes) continue;
    for (int t = 0; t < streams; ++t) {
      float mixed = 0;
#pragma unroll
      for (int s = 0; s < kWidth; ++s) {
        if (s >= streams) break;
        mixed = fmaf(residual[s][t], own[s], mixed);
      }
      x[int64_t{t} * dim + i] = mixed;
    }
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
  const auto kernel = problem.streams <= 2   ? ReadKernel<2>
                      : problem.streams <= 4 ? ReadKernel<4>
                      : problem.streams <= 8 ? ReadKernel<8>
                                             : ReadKernel<kMaxResidualStreams>;
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
