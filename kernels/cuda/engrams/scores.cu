// Distances between all engrams of a store and the working ones, as products of matrices are tiled:
// a block takes some of the slots, and goes over the working engrams with a running logarithm of a
// sum of exponentials.
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/engrams/engrams.h"
#include "kernels/cuda/engrams/store.cuh"

namespace mneme::cuda::engrams {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kTile = 64;   // engrams, and working ones, of a block at a time
constexpr int kPiece = 32;  // elements of them
constexpr int kSide = 16;   // threads along a tile
constexpr int kOfThread = kTile / kSide;
constexpr int kLoads = kTile * kPiece / kThreads;  // of a thread, of each side
constexpr int kRowsAtOnce = kThreads / kPiece;

struct ScoreProblem {
  EngramRules rules;
  Store store;
  CrossingArrays crossings;
  float* scores;
  int tiles;  // of a crossing
};

__device__ inline float WarpLeast(float x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    x = fminf(x, __shfl_xor_sync(kAllLanes, x, offset));
  }
  return x;
}

// What a lane knows of an engram's score after some working engrams.
struct Score {
  float least = INFINITY, sum = 0;
};

__global__ void __launch_bounds__(kThreads, 2) ScoreKernel(const __grid_constant__ ScoreProblem p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  extern __shared__ int32_t working[];  // slots of working engrams, by birth
  __shared__ float x[kTile][kPiece + 1], y[kTile][kPiece + 1];
  __shared__ float distances[kTile][kTile + 1];
  __shared__ int wanted;
  const int crossing = blockIdx.x / p.tiles, tile = blockIdx.x % p.tiles;
  const int slot = p.crossings.slots[crossing];
  if (slot < 0) return;
  const int capacity = p.store.capacity, dim = p.store.dim, count = p.rules.working;
  const EngramType* const types = p.store.types(slot);
  const uint32_t* const births = p.store.births(slot);
  const int first = tile * kTile, engrams = min(kTile, capacity + 1 - first);
  const auto is_scored = [&](int i) {
    return i == capacity || types[i] == EngramType::kShortTerm || types[i] == EngramType::kLongTerm;
  };

  if (threadIdx.x == 0) wanted = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < engrams; i += kThreads) {
    if (is_scored(first + i)) wanted = 1;
  }
  __syncthreads();
  if (wanted == 0) return;
  for (int w = threadIdx.x; w < count; w += kThreads) working[w] = -1;
  __syncthreads();
  const uint32_t first_birth = FirstBirth(p.crossings.segments[crossing], count);
  for (int i = threadIdx.x; i < capacity; i += kThreads) {
    const uint32_t w = births[i] - first_birth;
    if (types[i] == EngramType::kWorking && w < static_cast<uint32_t>(count)) working[w] = i;
  }
  __syncthreads();

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int across = threadIdx.x % kSide, down = threadIdx.x / kSide;
  const int own = threadIdx.x % kPiece, own_row = threadIdx.x / kPiece;
  int vectors[kLoads];  // negative: none
#pragma unroll
  for (int n = 0; n < kLoads; ++n) {
    const int i = first + own_row + n * kRowsAtOnce;
    vectors[n] = i < capacity && is_scored(i) ? i : -1;
  }
  Score scores[kTile / kWarps];  // of the warp's engrams
  for (int w = 0; w < count; w += kTile) {
    float sums[kOfThread][kOfThread] = {};
    int others[kLoads];
#pragma unroll
    for (int n = 0; n < kLoads; ++n) {
      const int row = w + own_row + n * kRowsAtOnce;
      others[n] = row < count ? working[row] : -1;
    }
    // A piece is on its way while the one before it is worked on.
    float next_x[kLoads], next_y[kLoads];
    const auto load = [&](int at) {
#pragma unroll
      for (int n = 0; n < kLoads; ++n) {
        const bool in = at + own < dim;
        next_x[n] = in && vectors[n] >= 0 ? p.store.vector(slot, vectors[n])[at + own] : 0.0f;
        next_y[n] = in && others[n] >= 0 ? p.store.vector(slot, others[n])[at + own] : 0.0f;
      }
    };
    load(0);
    for (int at = 0; at < dim; at += kPiece) {
#pragma unroll
      for (int n = 0; n < kLoads; ++n) {
        x[own_row + n * kRowsAtOnce][own] = next_x[n];
        y[own_row + n * kRowsAtOnce][own] = next_y[n];
      }
      __syncthreads();
      load(at + kPiece);
      // Short sums first: their rounding is what ranks are decided by.
      float piece[kOfThread][kOfThread] = {};
#pragma unroll 4
      for (int d = 0; d < kPiece; ++d) {
        float a[kOfThread], b[kOfThread];
#pragma unroll
        for (int n = 0; n < kOfThread; ++n) {
          a[n] = x[down + n * kSide][d];
          b[n] = y[across + n * kSide][d];
        }
#pragma unroll
        for (int n = 0; n < kOfThread; ++n) {
#pragma unroll
          for (int m = 0; m < kOfThread; ++m) {
            const float difference = a[n] - b[m];
            piece[n][m] = fmaf(difference, difference, piece[n][m]);
          }
        }
      }
#pragma unroll
      for (int n = 0; n < kOfThread; ++n) {
#pragma unroll
        for (int m = 0; m < kOfThread; ++m) sums[n][m] += piece[n][m];
      }
      __syncthreads();
    }
#pragma unroll
    for (int n = 0; n < kOfThread; ++n) {
#pragma unroll
      for (int m = 0; m < kOfThread; ++m) {
        distances[down + n * kSide][across + m * kSide] = sums[n][m];
      }
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kTile / kWarps; ++n) {
      const int row = warp + n * kWarps;
      const bool low_in = w + lane < count, high_in = w + lane + kWarp < count;
      const float low = distances[row][lane], high = distances[row][lane + kWarp];
      Score& score = scores[n];
      if (p.rules.score == EngramRules::Score::kExpMean) {
        const float least = fminf(
            score.least, WarpLeast(fminf(low_in ? low : INFINITY, high_in ? high : INFINITY)));
        const float sum =
            WarpSum((low_in ? expf(least - low) : 0.0f) + (high_in ? expf(least - high) : 0.0f));
        score.sum = fmaf(score.sum, expf(least - score.least), sum);
        score.least = least;
      } else {
        score.sum += WarpSum((low_in ? low : 0.0f) + (high_in ? high : 0.0f));
      }
    }
    __syncthreads();
  }

  float* const to = p.scores + int64_t{crossing} * (capacity + 1);
#pragma unroll
  for (int n = 0; n < kTile / kWarps; ++n) {
    const int row = warp + n * kWarps;
    if (lane > 0 || row >= engrams) continue;
    const float mean = scores[n].sum / static_cast<float>(count);
    to[first + row] =
        p.rules.score == EngramRules::Score::kExpMean ? logf(mean) - scores[n].least : -mean;
  }
}

}  // namespace

void ScoreEngrams(Device& device, const ScoreEngramsArgs& args) {
  CHECK(args.store.vectors.dtype == DType::kF32) << "ScoreEngrams";
  const ScoreProblem problem = {.rules = args.rules,
                                .store = Store(args.store),
                                .crossings = CrossingArrays(args.crossings),
                                .scores = args.scores.as<float>(),
                                .tiles = (args.store.capacity + kTile) / kTile};
  LaunchOverlapping(device, "ScoreEngrams", ScoreKernel,
                    static_cast<int>(args.crossings.most()) * problem.tiles, kThreads,
                    args.rules.working * static_cast<int64_t>(sizeof(int32_t)), 1, problem);
}

}  // namespace mneme::cuda::engrams
