// Distances between all engrams of a store and the working ones, as products of matrices are tiled:
// a block takes some of the slots, and goes over the working engrams with a running logarithm of a
// sum of exponentials. Where few sessions cross, it takes fewer slots, so that more blocks work.
#include <algorithm>
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
constexpr int kTile = 64;       // engrams, and working ones, of a block at a time
constexpr int kSmallTile = 16;  // engrams, where few sessions cross
constexpr int kFewCrossings = 4;
constexpr int kPiece = 32;  // elements of them
constexpr int kSide = 16;   // threads along a tile
constexpr int kRowsAtOnce = kThreads / kPiece;

struct ScoreProblem {
  EngramRules rules;
  Store store;
  CrossingArrays crossings;
  float* scores;
  int most;  // crossings
};

__host__ __device__ constexpr int TilesOf(int capacity, int tile) {
  return (capacity + tile) / tile;  // of capacity + 1
}

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

// Shared memory of a block.
struct ScoreRoom {
  float x[kTile][kPiece + 1], y[kTile][kPiece + 1];
  float distances[kTile][kTile + 1];
  int wanted;
};

// A crossing's slots from `first` on, `kRows` of them. working: room for the slots of its working
// engrams, by birth.
template <int kRows>
__device__ inline void ScoreTile(const ScoreProblem& p, int crossing, int first, ScoreRoom& room,
                                 int32_t* working) {
  // Of a thread.
  constexpr int kDown = kRows / kSide, kAcross = kTile / kSide;
  constexpr int kLoads = kRows * kPiece / kThreads, kOthers = kTile * kPiece / kThreads;
  auto& [x, y, distances, wanted] = room;
  const int slot = p.crossings.slots[crossing];
  const int capacity = p.store.capacity, dim = p.store.dim, count = p.rules.working;
  const EngramType* const types = p.store.types(slot);
  const uint32_t* const births = p.store.births(slot);
  const int engrams = min(kRows, capacity + 1 - first);
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
  Score scores[kRows / kWarps];  // of the warp's engrams
  for (int w = 0; w < count; w += kTile) {
    float sums[kDown][kAcross] = {};
    int others[kOthers];
#pragma unroll
    for (int n = 0; n < kOthers; ++n) {
      const int row = w + own_row + n * kRowsAtOnce;
      others[n] = row < count ? working[row] : -1;
    }
    // A piece is on its way while the one before it is worked on.
    float next_x[kLoads], next_y[kOthers];
    const auto load = [&](int at) {
      const bool in = at + own < dim;
#pragma unroll
      for (int n = 0; n < kLoads; ++n) {
        next_x[n] = in && vectors[n] >= 0 ? p.store.vector(slot, vectors[n])[at + own] : 0.0f;
      }
#pragma unroll
      for (int n = 0; n < kOthers; ++n) {
        next_y[n] = in && others[n] >= 0 ? p.store.vector(slot, others[n])[at + own] : 0.0f;
      }
    };
    load(0);
    for (int at = 0; at < dim; at += kPiece) {
#pragma unroll
      for (int n = 0; n < kLoads; ++n) x[own_row + n * kRowsAtOnce][own] = next_x[n];
#pragma unroll
      for (int n = 0; n < kOthers; ++n) y[own_row + n * kRowsAtOnce][own] = next_y[n];
      __syncthreads();
      load(at + kPiece);
      // Short sums first: their rounding is what ranks are decided by.
      float piece[kDown][kAcross] = {};
#pragma unroll 4
      for (int d = 0; d < kPiece; ++d) {
        float a[kDown], b[kAcross];
#pragma unroll
        for (int n = 0; n < kDown; ++n) a[n] = x[down + n * kSide][d];
#pragma unroll
        for (int m = 0; m < kAcross; ++m) b[m] = y[across + m * kSide][d];
#pragma unroll
        for (int n = 0; n < kDown; ++n) {
#pragma unroll
          for (int m = 0; m < kAcross; ++m) {
            const float difference = a[n] - b[m];
            piece[n][m] = fmaf(difference, difference, piece[n][m]);
          }
        }
      }
#pragma unroll
      for (int n = 0; n < kDown; ++n) {
#pragma unroll
        for (int m = 0; m < kAcross; ++m) sums[n][m] += piece[n][m];
      }
      __syncthreads();
    }
#pragma unroll
    for (int n = 0; n < kDown; ++n) {
#pragma unroll
      for (int m = 0; m < kAcross; ++m) {
        distances[down + n * kSide][across + m * kSide] = sums[n][m];
      }
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kRows / kWarps; ++n) {
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
  for (int n = 0; n < kRows / kWarps; ++n) {
    const int row = warp + n * kWarps;
    if (lane > 0 || row >= engrams) continue;
    const float mean = scores[n].sum / static_cast<float>(count);
    to[first + row] =
        p.rules.score == EngramRules::Score::kExpMean ? logf(mean) - scores[n].least : -mean;
  }
}

// Blocks beyond the tiles of those that cross leave at once. Whether only the first few do, the
// device alone knows; it does not change a bit.
__global__ void __launch_bounds__(kThreads, 2) ScoreKernel(const __grid_constant__ ScoreProblem p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  extern __shared__ int32_t working[];
  __shared__ ScoreRoom room;
  const int capacity = p.store.capacity, block = static_cast<int>(blockIdx.x);
  bool more = false;
  for (int i = kFewCrossings + static_cast<int>(threadIdx.x); i < p.most; i += kThreads) {
    more |= p.crossings.slots[i] >= 0;
  }
  const bool few = __syncthreads_or(more) == 0;
  const int tiles = TilesOf(capacity, few ? kSmallTile : kTile);
  const int crossing = block / tiles, tile = block % tiles;
  if (crossing >= p.most || p.crossings.slots[crossing] < 0) return;
  if (few) {
    ScoreTile<kSmallTile>(p, crossing, tile * kSmallTile, room, working);
  } else {
    ScoreTile<kTile>(p, crossing, tile * kTile, room, working);
  }
}

}  // namespace

void ScoreEngrams(Device& device, const ScoreEngramsArgs& args) {
  CHECK(args.store.vectors.dtype == DType::kF32) << "ScoreEngrams";
  const ScoreProblem problem = {.rules = args.rules,
                                .store = Store(args.store),
                                .crossings = CrossingArrays(args.crossings),
                                .scores = args.scores.as<float>(),
                                .most = static_cast<int>(args.crossings.most())};
  const int capacity = args.store.capacity;
  const int blocks =
      std::max(problem.most * TilesOf(capacity, kTile),
               std::min(problem.most, kFewCrossings) * TilesOf(capacity, kSmallTile));
  LaunchOverlapping(device, "ScoreEngrams", ScoreKernel, blocks, kThreads,
                    args.rules.working * static_cast<int64_t>(sizeof(int32_t)), 1, problem);
}

}  // namespace mneme::cuda::engrams
