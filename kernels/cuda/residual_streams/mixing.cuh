// How a token's streams are mixed, by the block that has it. Every sum has a fixed order.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/fours.cuh"
#include "kernels/ops/residual_streams.h"

namespace mneme::cuda::residual_streams {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kSinkhornRounds = 20;
constexpr float kLeastNorm = 1e-12f;

struct ReadProblem {
  StreamMixing::Kind kind;
  const float *gain, *alpha, *alpha_weight, *beta, *beta_weight, *scales;
  float *x, *y, *post;  // no post: nothing is written back
  int streams, dim;
  float root;  // of dim
};

// A stream's sums: its squares, the products with the rows of alpha_weight, and that
// with beta_weight.
template <int kWidth>
constexpr int kSums = kWidth + 3;

__device__ inline float Dot(float4 a, float4 b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// A thread's part of all sums of exactly kWidth streams, which it is given four elements at a time.
template <int kWidth>
class SumsOfFours {
 public:
  // The weights of elements i to i + 3, which nobody writes.
  struct Weights {
    float4 gain, rows[kWidth + 2];
  };
  __device__ static Weights Load(const ReadProblem& p, int i) {
    Weights weights;
    weights.gain = LoadFour(p.gain + i);
#pragma unroll
    for (int j = 0; j <= kWidth; ++j) {
      weights.rows[j] = LoadFour(p.alpha_weight + j * int64_t{p.dim} + i);
    }
    weights.rows[kWidth + 1] = LoadFour((p.post != nullptr ? p.beta_weight : p.gain) + i);
    return weights;
  }

  __device__ void Add(const float4 (&own)[kWidth], const Weights& weights) {
    const float4 gain = {1.0f + weights.gain.x, 1.0f + weights.gain.y, 1.0f + weights.gain.z,
                         1.0f + weights.gain.w};
#pragma unroll
    for (int s = 0; s < kWidth; ++s) {
      of_thread_[s * kOfStream] = Dot(own[s], own[s], of_thread_[s * kOfStream]);
      const float4 x = {gain.x * own[s].x, gain.y * own[s].y, gain.z * own[s].z, gain.w * own[s].w};
#pragma unroll
      for (int j = 0; j < kWidth + 2; ++j) {
        float& sum = of_thread_[s * kOfStream + 1 + j];
        sum = Dot(x, weights.rows[j], sum);
      }
    }
  }

  // The sums of the block's threads, behind the next barrier.
  __device__ void Finish(float (&sums)[kWidth][kSums<kWidth>]) {
    __shared__ float parts[kWarps][kAll];
    const int lane = threadIdx.x % kWarp;
    parts[threadIdx.x / kWarp][lane / (kWarp / kAll)] = WarpSums(of_thread_, lane);
    __syncthreads();
    const int s = threadIdx.x / kOfStream, j = threadIdx.x % kOfStream;
    if (s >= kWidth || j >= kSums<kWidth>) return;
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum += parts[warp][threadIdx.x];
    sums[s][j] = sum;
  }

 private:
  static constexpr int kOfStream = 8, kAll = kWidth == 3 ? kWarp : kWidth * kOfStream;
  static_assert(kSums<kWidth> <= kOfStream && kAll <= kWarp);
  float of_thread_[kAll] = {};
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

// The sum of up to four numbers, of which two are waited for.
template <int kCount>
__device__ inline float PairwiseSum(const float (&x)[kCount]) {
  static_assert(kCount <= 4);
  float first = x[0], second = 0;
  if constexpr (kCount > 1) first += x[1];
  if constexpr (kCount > 2) second = x[2];
  if constexpr (kCount > 3) second += x[3];
  return first + second;
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
      float own[kWidth];
#pragma unroll
      for (int s = 0; s < kWidth; ++s) own[s] = all[s][t];
      const float by = Reciprocal(fmaxf(PairwiseSum(own), kLeastNorm));
#pragma unroll
      for (int s = 0; s < kWidth; ++s) all[s][t] *= by;
    }
#pragma unroll
    for (int s = 0; s < kWidth; ++s) {
      const float by = Reciprocal(fmaxf(PairwiseSum(all[s]), kLeastNorm));
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
    const float power = expf(column[s] - largest);  // no branch
    column[s] = s < streams && lane < streams ? power : 0.0f;
  }
  if constexpr (kWidth <= 4) {
    BalanceMatrix<kWidth>(column, lane);
  } else {
    BalanceColumns<kWidth>(column);
  }
}

// The weights of the sums, in memory that the block shares.
template <int kWidth>
struct Mixing {
  float pre[kWidth], residual[kWidth][kWidth];
};

// A lane of a warp for each of `streams` streams, kWidth at most. Lanes beyond them do as if they
// had the last one, so that the warp takes no branch that would part its lanes.
template <int kWidth>
class MixingOfLane {
 public:
  // What weights alone tell, so that it is known already.
  __device__ MixingOfLane(const ReadProblem& p, int streams)
      : streams_(streams),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        stream_(min(lane_, streams - 1)),
        pre_alpha_(p.alpha[stream_ * (1 + streams)]),
        beta_(p.post != nullptr ? p.beta[stream_] : 0),
        pre_scale_(p.scales[0]),
        residual_scale_(p.scales[1]),
        post_scale_(p.scales[2]) {
#pragma unroll
    for (int s = 0; s < kWidth; ++s) {
      column_[s] = p.alpha[min(s, streams - 1) * (1 + streams) + 1 + stream_];
    }
  }

  // By one warp, once: what follows from the sums of a token's streams, and its post.
  __device__ void Find(const ReadProblem& p, int64_t token,
                       const float (&sums)[kWidth][kSums<kWidth>], Mixing<kWidth>* mixing) {
    // Functions that only one kind has stay out of the way of the others.
    if (p.kind == StreamMixing::Kind::kDynamic) {
      FindAs<true>(p, token, sums, mixing);
    } else {
      FindAs<false>(p, token, sums, mixing);
    }
  }

 private:
  template <bool kDynamic>
  __device__ void FindAs(const ReadProblem& p, int64_t token,
                         const float (&sums)[kWidth][kSums<kWidth>], Mixing<kWidth>* mixing) {
    const bool writes = p.post != nullptr, is_stream = lane_ < streams_;
    // Each lane has the length of its stream.
    const float by_length = p.root * fminf(rsqrtf(sums[stream_][0]), 1.0f / kLeastNorm);
    const auto bounded = [](float t) { return kDynamic ? tanhf(t) : t; };
    const auto gate = [](float x) { return kDynamic ? x : Reciprocal(1.0f + expf(-x)); };
    const float pre = gate(fmaf(pre_scale_, bounded(sums[stream_][1] * by_length), pre_alpha_));
    if (is_stream) mixing->pre[lane_] = pre;
    if (!writes) return;
    const float post =
        gate(fmaf(post_scale_, bounded(sums[stream_][kWidth + 2] * by_length), beta_));
    if (is_stream) p.post[token * streams_ + lane_] = kDynamic ? post : 2.0f * post;
#pragma unroll
    for (int s = 0; s < kWidth; ++s) {
      const float of_stream = __shfl_sync(kAllLanes, by_length, s);
      column_[s] = fmaf(residual_scale_,
                        bounded(sums[min(s, streams_ - 1)][2 + stream_] * of_stream), column_[s]);
    }
    if (p.kind == StreamMixing::Kind::kConstrained) {
      MakeDoublyStochastic<kWidth>(column_, streams_, lane_);
    }
#pragma unroll
    for (int s = 0; s < kWidth; ++s) {
      const float by = p.kind == StreamMixing::Kind::kSum ? 1.0f : column_[s];
      if (lane_ < kWidth) mixing->residual[s][lane_] = by;
    }
  }

  const int streams_, lane_, stream_;
  const float pre_alpha_, beta_, pre_scale_, residual_scale_, post_scale_;
  float column_[kWidth];
};

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

__device__ inline float4 AddTimes(float by, float4 x, float4 sum) {
  return {fmaf(by, x.x, sum.x), fmaf(by, x.y, sum.y), fmaf(by, x.z, sum.z), fmaf(by, x.w, sum.w)};
}

// The problem of a read.
inline ReadProblem ProblemOf(const ReadStreamsArgs& args) {
  const StreamMixing& mixing = args.mixing;
  return {.kind = mixing.kind,
          .gain = mixing.gain.as<const float>(),
          .alpha = mixing.alpha.as<const float>(),
          .alpha_weight = mixing.alpha_weight.as<const float>(),
          .beta = mixing.beta.as<const float>(),
          .beta_weight = mixing.beta_weight.as<const float>(),
          .scales = mixing.scales.as<const float>(),
          .x = args.x.as<float>(),
          .y = args.y.as<float>(),
          .post = mixing.beta.empty() ? nullptr : args.post.as<float>(),
          .streams = static_cast<int>(args.x.shape[1]),
          .dim = static_cast<int>(args.x.shape[2]),
          .root = std::sqrt(static_cast<float>(args.x.shape[2]))};
}
// Whether a token's rows are taken in fours.
inline bool InFours(const ReadStreamsArgs& args) {
  const StreamMixing& mixing = args.mixing;
  return cuda::InFours(args.x.shape[2], args.x, args.y, mixing.gain, mixing.alpha_weight,
                       mixing.beta_weight);
}

}  // namespace mneme::cuda::residual_streams
