// A chunk's keys and queries as matrix_memory/chunked/rule_before.cu takes them: slices of 64 keys
// in shared memory, their tiles, and sums over them of products that decay.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/common/async_copy.cuh"
#include "kernels/cuda/matrix_memory/chunked/inverse.cuh"
#include "kernels/cuda/matrix_memory/chunked/rule.h"
#include "kernels/cuda/matrix_memory/chunked/rule_tiles.cuh"

namespace mneme::cuda::matrix_memory::chunked {

constexpr int kSliceFloats = kChunk * kSlicePitch;
static_assert(kSlicePitch == kPitch && kSubs * kSlice == kPrepareThreads &&
              4 * kChunk == kPrepareThreads);

// A tensor of [entries, heads, key_dim].
struct KeyRows {
  const float* data;
  int heads;
};

struct BeforeParams {
  RuleChunks chunks;
  KeyRows q, c, k, e, log_decay;
  const float* bonus;
  float scale;  // of what is read, with the general correction
  const int* offsets;
};

// The sums under the general correction.
struct GeneralParts {
  float a[kSliceFloats];      // -c.e, j < i
  float t[kSliceFloats];      // (I + a)^-1
  float reads[kSliceFloats];  // q.k, j <= i
  float factor[kFactorFloats];
  alignas(128) uint8_t written[kTileBytes];   // c.k, j < i
  alignas(128) uint8_t erased[kTileBytes];    // q.e, j <= i
  alignas(128) uint8_t recalled[kTileBytes];  // q.e T
};
struct BonusParts {
  alignas(128) uint8_t reads[kTileBytes];  // q.k, j <= i
};

template <bool kGeneral>
struct BeforeMemory {
  static constexpr int kSides = kGeneral ? 2 : 1, kProducts = kSides * kSides;
  union {
    struct {
      float x[kSides][kSliceFloats];                 // q, c
      float y[kSides][kSliceFloats];                 // k, e
      float sums[kSubs * (kSub + 1) * kSlicePitch];  // of each sub-chunk: zero, then L
    };
    std::conditional_t<kGeneral, GeneralParts, BonusParts> parts;
  };
  // While slices are summed nobody needs the tile; then nobody needs the totals.
  union {
    alignas(128) uint8_t t_tile[kTileBytes];
    float total[kSubs][kSlice];
  };
  float halves[kProducts][kSubs][kOwnPairs][kWarp];  // sums of half of the keys
  float own[kSides][kChunk];                         // what a token reads of itself, of k and e
};

// L before entry `row` of the chunk; that of the next entry comes a pitch later.
__device__ inline int SumsBefore(int row) { return (row + row / kSub) * kSlicePitch; }

__device__ inline void CopySlice(const BeforeParams& p, const KeyRows& rows,
                                 const ChunkPlace& place, int head, int slice, float* to,
                                 bool sums) {
  const RuleSizes& sizes = p.chunks.sizes;
  const int row = threadIdx.x / 16, column = threadIdx.x % 16 * 4;
  const int64_t pitch = int64_t{rows.heads} * sizes.key_dim;
  const float* from = rows.data + (place.entry + row) * pitch +
                      head / (sizes.image_heads / rows.heads) * sizes.key_dim + slice * kSlice +
                      column;
#pragma unroll
  for (int i = 0; i < kSubs; ++i) {
    const int own = row + kSub * i;
    const int at = sums ? SumsBefore(own) + kSlicePitch : own * kSlicePitch;
    CopyAsync16(SharedAddress(to + at + column), from + kSub * i * pitch, own < place.entries);
  }
}

// The part of its own write that a token reads, over a slice's keys: four threads an entry.
template <bool kGeneral>
__device__ inline void SumOwn(const BeforeParams& p, int head, int slice,
                              BeforeMemory<kGeneral>& memory) {
  const int row = threadIdx.x / 4, quarter = threadIdx.x % 4;
  float own[memory.kSides] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int column = 16 * i + 4 * quarter, at = row * kSlicePitch + column;
    float4 q = *reinterpret_cast<const float4*>(memory.x[0] + at);
    if constexpr (!kGeneral) {
      const float4 bonus = *reinterpret_cast<const float4*>(
          p.bonus + int64_t{head} * p.chunks.sizes.key_dim + slice * kSlice + column);
      q.x *= bonus.x, q.y *= bonus.y, q.z *= bonus.z, q.w *= bonus.w;
    }
#pragma unroll
    for (int side = 0; side < memory.kSides; ++side) {
      const float4 y = *reinterpret_cast<const float4*>(memory.y[side] + at);
      own[side] += q.x * y.x + q.y * y.y + q.z * y.z + q.w * y.w;
    }
  }
#pragma unroll
  for (int side = 0; side < memory.kSides; ++side) {
    own[side] += __shfl_xor_sync(kAllLanes, own[side], 1);
    own[side] += __shfl_xor_sync(kAllLanes, own[side], 2);
    if (quarter == 0) memory.own[side][row] = (slice == 0 ? 0 : memory.own[side][row]) + own[side];
  }
}

template <bool kGeneral>
__device__ inline void LoadSlice(const BeforeParams& p, const ChunkPlace& place, int head,
                                 int slice, BeforeMemory<kGeneral>& memory) {
  CopySlice(p, p.q, place, head, slice, memory.x[0], false);
  CopySlice(p, p.k, place, head, slice, memory.y[0], false);
  if constexpr (kGeneral) {
    CopySlice(p, p.c, place, head, slice, memory.x[1], false);
    CopySlice(p, p.e, place, head, slice, memory.y[1], false);
  }
  CopySlice(p, p.log_decay, place, head, slice, memory.sums, true);
  AwaitCopies();
  __syncthreads();
  SumOwn(p, head, slice, memory);
  if constexpr (kGeneral) __syncthreads();
  const int sub = threadIdx.x / kSlice, column = threadIdx.x % kSlice;
  float* const sums = memory.sums + SumsBefore(kSub * sub) + column;
  float sum = 0;
  sums[0] = 0;
#pragma unroll
  for (int i = 0; i < kSub; ++i) {
    const float decay = Log2Decay(sums[(i + 1) * kSlicePitch]);
    sum += decay;
    sums[(i + 1) * kSlicePitch] = sum;
    if constexpr (kGeneral) memory.x[0][(kSub * sub + i) * kSlicePitch + column] *= Exp2(decay);
  }
  memory.total[sub][column] = sum;
  __syncthreads();
}

// Tiles of a slice, to memory: of c and q, or q, then of e and k, or k.
template <bool kGeneral>
__device__ inline void StoreTiles(const BeforeMemory<kGeneral>& memory, uint8_t* image) {
  constexpr int kSides = BeforeMemory<kGeneral>::kSides;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = threadIdx.x / 8 + 32 * i, piece = threadIdx.x % 8, sub = row / kSub;
    float before[8], local[8], after[8] = {};
    LoadEight(memory.sums + SumsBefore(row) + 8 * piece, before);
    LoadEight(memory.sums + SumsBefore(row) + kSlicePitch + 8 * piece, local);
    AddDecaysAround(memory.total, 8 * piece, sub, local, before, after);
#pragma unroll
    for (int c = 0; c < 8; ++c) before[c] = Exp2(before[c]), after[c] = Exp2(after[c]);
    const uint32_t to = TileOffset(row, piece);
#pragma unroll
    for (int side = 0; side < kSides; ++side) {
      float x[8], y[8];
      LoadEight(memory.x[side] + row * kSlicePitch + 8 * piece, x);
      LoadEight(memory.y[side] + row * kSlicePitch + 8 * piece, y);
#pragma unroll
      for (int c = 0; c < 8; ++c) x[c] *= before[c], y[c] *= after[c];
      uint8_t* const tile = image + (kSides - 1 - side) * kTileBytes + to;
      *reinterpret_cast<uint4*>(tile) = PackEight(x);
      *reinterpret_cast<uint4*>(tile + kSides * kTileBytes) = PackEight(y);
    }
  }
}

// A warp's block of products of two sub-chunks; of x `l` and y `r` in sums[l * kSides + r].
template <bool kGeneral>
__device__ inline void MultiplySubs(const BeforeMemory<kGeneral>& memory, int later, int earlier,
                                    float (&sums)[BeforeMemory<kGeneral>::kProducts][8]) {
  constexpr int kSides = BeforeMemory<kGeneral>::kSides;
  const int lane = threadIdx.x % kWarp;
  const int row = kSub * later + lane / 4, from = kSub * earlier + lane / 4;
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    uint32_t left[kSides][4], right[kSides][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = 16 * step + 8 * half + 2 * (lane % 4);
      const auto pair = [column](const float* row) {
        return *reinterpret_cast<const float2*>(row + column);
      };
      const float2 end = pair(memory.total[earlier]);
      float2 between = {0, 0};
      for (int s = earlier + 1; s < later; ++s) {
        const float2 total = pair(memory.total[s]);
        between.x += total.x, between.y += total.y;
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 before = pair(memory.sums + SumsBefore(row + 8 * r));
        const float2 local = pair(memory.sums + SumsBefore(from + 8 * r) + kSlicePitch);
        const float2 own = {Exp2(before.x + between.x), Exp2(before.y + between.y)};
        const float2 rest = {Exp2(fminf(end.x - local.x, 0.0f)),
                             Exp2(fminf(end.y - local.y, 0.0f))};
#pragma unroll
        for (int side = 0; side < kSides; ++side) {
          const float2 x = pair(memory.x[side] + (row + 8 * r) * kSlicePitch);
          const float2 y = pair(memory.y[side] + (from + 8 * r) * kSlicePitch);
          left[side][2 * half + r] = PackPair<__nv_bfloat16>(x.x * own.x, x.y * own.y);
          right[side][2 * r + half] = PackPair<__nv_bfloat16>(y.x * rest.x, y.y * rest.y);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int product = 0; product < kSides * kSides; ++product) {
        const auto& y = right[product % kSides];
        Mma<__nv_bfloat16>(sums[product] + 4 * n, left[product / kSides], y[2 * n], y[2 * n + 1]);
      }
    }
  }
}

// A warp's half of a slice's keys.
template <bool kGeneral>
__device__ inline void SumWithin(const BeforeMemory<kGeneral>& memory, int sub, int half,
                                 float (&sums)[BeforeMemory<kGeneral>::kProducts][kOwnPairs]) {
  constexpr int kSides = BeforeMemory<kGeneral>::kSides;
  const int lane = threadIdx.x % kWarp;
  const int row = kSub * sub + lane / 4, column = kSub * sub + lane % 4;
  const auto load = [](const float* from, float(&to)[4]) {
    *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
  };
#pragma unroll 1
  for (int c = 32 * half; c < 32 * half + 32; c += 4) {
    float x[kSides][2][4], before[2][4];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      load(memory.sums + SumsBefore(row + 8 * r) + c, before[r]);
#pragma unroll
      for (int side = 0; side < kSides; ++side) {
        load(memory.x[side] + (row + 8 * r) * kSlicePitch + c, x[side][r]);
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float y[kSides][4], local[4];
      load(memory.sums + SumsBefore(column + 4 * j) + kSlicePitch + c, local);
#pragma unroll
      for (int side = 0; side < kSides; ++side) {
        load(memory.y[side] + (column + 4 * j) * kSlicePitch + c, y[side]);
      }
#pragma unroll
      for (int pair = 0; pair < kOwnPairs; ++pair) {
        if (PairColumn(pair) != 4 * j) continue;
        const int r = PairRow(pair) / 8;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float decay = Exp2(fminf(before[r][i] - local[i], 0.0f));
#pragma unroll
          for (int right = 0; right < kSides; ++right) {
            const float decayed = y[right][i] * decay;
#pragma unroll
            for (int left = 0; left < kSides; ++left) {
              sums[left * kSides + right][pair] += x[left][r][i] * decayed;
            }
          }
        }
      }
    }
  }
}

}  // namespace mneme::cuda::matrix_memory::chunked
