// Attention to engrams on tensor cores: a block of threads takes up to 64 tokens of a row and a
// head, 16 tokens a warp, and goes over the row's engrams a tile after the other. What engrams got
// is added up afterwards, from scores computed again: a block takes a tile of engrams.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/common/attention_tiles.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/engrams/attention.cuh"

namespace mneme::cuda::engrams {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kWarpTokens = 16;
constexpr int kTokens = kWarps * kWarpTokens;

template <int kDim>
constexpr int kFieldBytes = kDim / 64 * kGroupBytes;

// Begins to copy a head's keys or values of engrams [first, first + kTileKeys) of a slot to `to`;
// those from `count` on become zeros.
template <int kDim>
__device__ void Fetch(const AttendProblem& p, const Field& field, int slot, int head, int first,
                      int count, unsigned char* to) {
  constexpr int kPieces = kDim / 8, kRowsAtOnce = kThreads / kPieces;
  const int piece = threadIdx.x % kPieces;
  const int64_t pitch = int64_t{p.heads} * p.dim;
  const __nv_bfloat16* const rows =
      field.At<const __nv_bfloat16>(slot, 0) + p.first * pitch + head * int64_t{p.dim};
  for (int row = threadIdx.x / kPieces; row < kTileKeys; row += kRowsAtOnce) {
    const bool there = first + row < count && piece * 8 < p.dim;
    CopyAsync16(SharedAddress(to + Place(row, piece)),
                rows + (there ? (first + row) * pitch + piece * 8 : 0), there);
  }
}

// Two neighbouring numbers of a query; zeros beyond its end.
__device__ uint32_t QueryPair(const AttendProblem& p, int token, int head, int column) {
  if (column >= p.dim) return 0;
  const float2 pair =
      *reinterpret_cast<const float2*>(p.q + (int64_t{token} * p.heads + head) * p.dim + column);
  return RoundPair(pair.x, pair.y, __nv_bfloat16());
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, kDim == 64 ? 4 : 2)
    TokensKernel(const __grid_constant__ AttendProblem p) {
  extern __shared__ __align__(128) unsigned char shared[];  // two stages of keys and values
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int head = blockIdx.x % p.heads;
  int row = 0, first_token = 0, tokens = 0;
  if (!FindTokens(p.row_offsets, p.rows, blockIdx.x / p.heads, kTokens, &row, &first_token,
                  &tokens)) {
    return;
  }
  const int slot = p.slots[row];
  if (slot < 0) return;
  const int count = SeenBy(p, row), tiles = (count + kTileKeys - 1) / kTileKeys;
  const auto keys = [&](int n) { return shared + n % 2 * 2 * kFieldBytes<kDim>; };
  const auto fetch = [&](int n) {
    if (n < tiles) {
      Fetch<kDim>(p, p.keys, slot, head, n * kTileKeys, count, keys(n));
      Fetch<kDim>(p, p.values, slot, head, n * kTileKeys, count, keys(n) + kFieldBytes<kDim>);
    }
    CommitCopies();
  };
  fetch(0);

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const bool works = warp * kWarpTokens < tokens;
  int token[2];
  bool exists[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int own = warp * kWarpTokens + lane / 4 + 8 * i;
    exists[i] = own < tokens;
    token[i] = first_token + min(own, tokens - 1);
  }
  uint32_t q[kDim / 16][4];
#pragma unroll
  for (int i = 0; i < kDim / 16; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      q[i][j] = QueryPair(p, token[j % 2], head, i * 16 + 2 * (lane % 4) + j / 2 * 8);
    }
  }
  Sums<kDim> sums;
  for (int n = 0; n < tiles; ++n) {
    fetch(n + 1);
    WaitCopies<1>();
    __syncthreads();
    if (works) {
      const uint32_t k = SharedAddress(keys(n)), v = k + kFieldBytes<kDim>;
      float scores[kTileKeys / 8][4] = {};
#pragma unroll
      for (int t = 0; t < kTileKeys / 8; ++t) {
#pragma unroll
        for (int i = 0; i < kDim / 32; ++i) {
          uint32_t m[4];
          LoadMatrices(m, k + Place(t * 8 + lane % 8, i * 4 + lane / 8));
          MultiplyAdd(scores[t], q[2 * i], m[0], m[1], __nv_bfloat16());
          MultiplyAdd(scores[t], q[2 * i + 1], m[2], m[3], __nv_bfloat16());
        }
      }
      const int2 seen = {0, count - n * kTileKeys}, both[2] = {seen, seen};
      float factors[2];
      sums.template Weigh<kTileKeys>(both, 0, p.scale * kLog2E, scores, factors);
      sums.Scale(factors);
#pragma unroll
      for (int s = 0; s < kTileKeys / 16; ++s) {
        uint32_t weights[4];
        RoundWeights(scores, s, weights);
#pragma unroll
        for (int t = 0; t < kDim / 8; t += 2) {
          uint32_t m[4];
          LoadTransposedMatrices(m, v + Place(s * 16 + lane % 16, t + lane / 16));
          MultiplyAdd(sums.out[t], weights, m[0], m[1], __nv_bfloat16());
          MultiplyAdd(sums.out[t + 1], weights, m[2], m[3], __nv_bfloat16());
        }
      }
    }
    __syncthreads();  // the stage has been read
  }
  sums.Finish();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (!exists[i]) continue;
    const int64_t at = int64_t{token[i]} * p.heads + head;
    const float by = tiles == 0 ? 0.0f : 1.0f / sums.total[i];
#pragma unroll
    for (int t = 0; t < kDim / 8; ++t) {
      const int column = t * 8 + 2 * (lane % 4);
      if (column >= p.dim) continue;
      *reinterpret_cast<float2*>(p.out + at * p.dim + column) = {by * sums.out[t][2 * i],
                                                                 by * sums.out[t][2 * i + 1]};
    }
    if (p.weights != nullptr && lane % 4 == 0) {
      p.weights[at] = sums.largest[i] + log2f(sums.total[i]);
    }
  }
}

// Adds up what a tile's engrams got of all tokens of a row: 16 engrams a warp.
template <int kDim>
__global__ void __launch_bounds__(kThreads)
    WeightsKernel(const __grid_constant__ AttendProblem p, int tiles) {
  extern __shared__ __align__(128) unsigned char shared[];
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int tile = blockIdx.x % tiles, head = blockIdx.x / tiles % p.heads;
  const int row = blockIdx.x / tiles / p.heads, slot = p.slots[row];
  if (slot < 0) return;
  const int count = SeenBy(p, row), begin = p.row_offsets[row], end = p.row_offsets[row + 1];
  if (begin == end || tile * kTileKeys >= count) return;
  Fetch<kDim>(p, p.keys, slot, head, tile * kTileKeys, count, shared);
  AwaitCopies();
  __syncthreads();

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const uint32_t keys = SharedAddress(shared);
  uint32_t k[kDim / 16][4];
#pragma unroll
  for (int i = 0; i < kDim / 16; ++i) {
    LoadMatrices(k[i], keys + Place(warp * 16 + lane % 16, i * 2 + lane / 16));
  }
  const float scale = p.scale * kLog2E;
  float got[2] = {};
  constexpr int kEights = 4;  // tokens whose queries are on their way at once
  for (int first = begin; first < end; first += 8 * kEights) {
    uint32_t q[kEights][kDim / 16][2];
    float totals[kEights][2];
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      const int own = min(first + 8 * n + lane / 4, end - 1);
#pragma unroll
      for (int i = 0; i < kDim / 16; ++i) {
        const int column = i * 16 + 2 * (lane % 4);
        q[n][i][0] = QueryPair(p, own, head, column);
        q[n][i][1] = QueryPair(p, own, head, column + 8);
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int token = first + 8 * n + 2 * (lane % 4) + e;
        totals[n][e] = token < end ? p.weights[int64_t{token} * p.heads + head] : INFINITY;
      }
    }
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      float scores[4] = {};
#pragma unroll
      for (int i = 0; i < kDim / 16; ++i) {
        MultiplyAdd(scores, k[i], q[n][i][0], q[n][i][1], __nv_bfloat16());
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) got[e / 2] += exp2f(fmaf(scale, scores[e], -totals[n][e % 2]));
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    got[i] += __shfl_xor_sync(kAllLanes, got[i], 1);
    got[i] += __shfl_xor_sync(kAllLanes, got[i], 2);
  }
  float* const to = p.sums.At<float>(slot, p.layer) + int64_t{head} * p.recalled;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int engram = tile * kTileKeys + warp * 16 + lane / 4 + 8 * i;
    if (lane % 4 == 0 && engram < count) to[engram] += got[i];
  }
}

template <int kDim>
void Launch(Device& device, AttendProblem p) {
  if (p.sums.base != nullptr) {
    p.weights = static_cast<float*>(
        device.Scratch(int64_t{p.tokens} * p.heads * static_cast<int64_t>(sizeof(float))));
    if (p.weights == nullptr) return;
  }
  // Each row may have one tile that is not full.
  const int token_tiles = std::min(p.tokens, (p.tokens + kTokens - 1) / kTokens + p.rows - 1);
  LaunchOverlapping(device, "EngramAttention, tiles", TokensKernel<kDim>, token_tiles * p.heads,
                    kThreads, 4 * kFieldBytes<kDim>, 1, p);
  if (p.sums.base == nullptr) return;
  const int tiles = (p.most + kTileKeys - 1) / kTileKeys;
  LaunchOverlapping(device, "EngramAttention, weights of tiles", WeightsKernel<kDim>,
                    p.rows * p.heads * tiles, kThreads, kFieldBytes<kDim>, 1, p, tiles);
}

}  // namespace

void AttendTiles(Device& device, AttendProblem problem) {
  (problem.dim > 64 ? Launch<128> : Launch<64>)(device, problem);
}

}  // namespace mneme::cuda::engrams
