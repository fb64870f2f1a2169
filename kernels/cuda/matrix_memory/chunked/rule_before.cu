// Chunks of memories whose keys each decay and of which a token recalls something before they do:
// RWKV-6, whose queries read then (ChunkForm::kKey), and RWKV-7, whose c does (kGeneralKey).
//
//   A[i, j] = sum_d x_i[d] y_j[d] exp(G_(i-1)[d] - G_j[d])        j < i
//
// for x = q or c, y = k or e. Queries that read after the decay are multiplied by their token's own
// first, so that all products have the same exponents; only what a token reads of itself is summed
// apart. As in matrix_memory/chunked/rule_keys.cu exponents are taken in parts, each at most 0: for
// entries i of sub-chunk I and j of an earlier J
//   G_(i-1) - G_j = L_(i-1) + B + (E - L_j)
// with E the sum of J's log decays, L sums of log decays since the start of the sub-chunk, and B
// those of the sub-chunks between. Within a sub-chunk A is summed as written, in f32.
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/common/async_copy.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/matrix_memory/chunked/inverse.cuh"
#include "kernels/cuda/matrix_memory/chunked/rule.h"
#include "kernels/cuda/matrix_memory/chunked/rule_tiles.cuh"

namespace mneme::cuda::matrix_memory::chunked {
namespace {

using Element = __nv_bfloat16;

constexpr int kThreads = kPrepareThreads;
constexpr int kSliceFloats = kChunk * kSlicePitch;
static_assert(kSlicePitch == kPitch && kSubs * kSlice == kThreads && 4 * kChunk == kThreads);

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

// What the general correction makes of the sums.
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

__device__ void CopySlice(const BeforeParams& p, const KeyRows& rows, const ChunkPlace& place,
                          int head, int slice, float* to, bool sums) {
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

// What a token reads of itself of a slice's keys: four threads an entry.
template <bool kGeneral>
__device__ void SumOwn(const BeforeParams& p, int head, int slice, BeforeMemory<kGeneral>& memory) {
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
__device__ void LoadSlice(const BeforeParams& p, const ChunkPlace& place, int head, int slice,
                          BeforeMemory<kGeneral>& memory) {
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
__device__ void StoreTiles(const BeforeMemory<kGeneral>& memory, uint8_t* image) {
  constexpr int kSides = BeforeMemory<kGeneral>::kSides;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = threadIdx.x / 8 + 32 * i, piece = threadIdx.x % 8, sub = row / kSub;
    float before[8], local[8], total[8], after[8] = {};
    LoadEight(memory.sums + SumsBefore(row) + 8 * piece, before);
    LoadEight(memory.sums + SumsBefore(row) + kSlicePitch + 8 * piece, local);
#pragma unroll
    for (int s = 0; s < kSubs; ++s) {
      LoadEight(memory.total[s] + 8 * piece, total);
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        if (s < sub) before[c] += total[c];
        if (s == sub) after[c] += fminf(total[c] - local[c], 0.0f);
        if (s > sub) after[c] += total[c];
      }
    }
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
__device__ void MultiplySubs(const BeforeMemory<kGeneral>& memory, int later, int earlier,
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
          left[side][2 * half + r] = PackPair<Element>(x.x * own.x, x.y * own.y);
          right[side][2 * r + half] = PackPair<Element>(y.x * rest.x, y.y * rest.y);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int product = 0; product < kSides * kSides; ++product) {
        const auto& y = right[product % kSides];
        Mma<Element>(sums[product] + 4 * n, left[product / kSides], y[2 * n], y[2 * n + 1]);
      }
    }
  }
}

// A warp's half of a slice's keys.
template <bool kGeneral>
__device__ void SumWithin(const BeforeMemory<kGeneral>& memory, int sub, int half,
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

// What tokens read and recall of each other, of entries i and j < i.
__device__ inline void StoreParts(BonusParts& parts, int i, int j, float, const float (&x)[1]) {
  StoreProduct(parts.reads, i, j, x[0]);
}
__device__ inline void StoreParts(GeneralParts& parts, int i, int j, float scale,
                                  const float (&x)[4]) {
  parts.reads[i * kSlicePitch + j] = scale * x[0];
  StoreProduct(parts.erased, i, j, scale * x[1]);
  StoreProduct(parts.written, i, j, x[2]);
  parts.a[i * kSlicePitch + j] = -x[3];
}
// What a token reads of itself.
template <bool kGeneral>
__device__ inline void StoreOwn(BeforeMemory<kGeneral>& memory, int i, float scale) {
  if constexpr (kGeneral) {
    memory.parts.reads[i * (kSlicePitch + 1)] = scale * memory.own[0][i];
    StoreProduct(memory.parts.erased, i, i, scale * memory.own[1][i]);
  } else {
    StoreProduct(memory.parts.reads, i, i, memory.own[0][i]);
  }
}

// T; q.e T; T c.k; q.k + q.e T c.k.
__device__ void FinishGeneral(BeforeMemory<true>& memory, uint8_t* products) {
  GeneralParts& parts = memory.parts;
  const int warp = threadIdx.x / kWarp;
  if (warp < kSubs) {
    const int corner = kSub * warp * (kPitch + 1);
    InvertBlock(parts.a + corner, parts.t + corner);
  }
  __syncthreads();
  JoinInverses(parts.a, parts.t, parts.factor);
  RoundTriangle<Element>(parts.t, memory.t_tile, products, kChunk);
  __syncthreads();
  const uint32_t t = SharedAddress(memory.t_tile), written = SharedAddress(parts.written);
  const uint32_t recalled = SharedAddress(parts.recalled);
  MultiplyTriangles<Element>(SharedAddress(parts.erased), t, [&](int i, int j, float x, float y) {
    StoreTilePair<Element>(products + kTileBytes, i, j, x, y);
    StoreTilePair<Element>(parts.recalled, i, j, x, y);
  });
  MultiplyTriangles<Element>(t, written, [&](int i, int j, float x, float y) {
    StoreTilePair<Element>(products + 2 * kTileBytes, i, j, x, y);
  });
  __syncthreads();
  MultiplyTriangles<Element>(recalled, written, [&](int i, int j, float x, float y) {
    const float* reads = parts.reads + i * kSlicePitch + j;
    StoreTilePair<Element>(products + 3 * kTileBytes, i, j, x + (j <= i ? reads[0] : 0.0f),
                           y + (j < i ? reads[1] : 0.0f));
  });
}

template <bool kGeneral>
__global__ __launch_bounds__(kThreads, kGeneral ? 2 : 3) void BeforeKernel(BeforeParams p) {
  constexpr ChunkForm kForm = kGeneral ? ChunkForm::kGeneralKey : ChunkForm::kKey;
  using Memory = BeforeMemory<kGeneral>;
  LetNextKernelStart();
  WaitForPreviousKernel();
  extern __shared__ __align__(1024) uint8_t shared[];
  Memory& memory = *reinterpret_cast<Memory*>(shared);
  const RuleSizes& sizes = p.chunks.sizes;
  const int heads = sizes.image_heads, chains = *p.chunks.plan.chains;
  const int items = p.chunks.plan.first_chunk[chains] * heads;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, sub = warp / 2;
  const int slices = sizes.key_dim / kSlice, gate_floats = GateFloats(kForm, sizes.key_dim);
  const float scale = kGeneral ? p.scale : 1.0f;
  for (int item = blockIdx.x; item < items; item += gridDim.x) {
    const int chunk = item / heads, head = item % heads;
    const ChunkPlace place = FindChunk(p.chunks.plan, p.offsets, chains, chunk);
    uint8_t* image = reinterpret_cast<uint8_t*>(
        p.chunks.keys + static_cast<int64_t>(item) * (KeyTiles(kForm) * kChunk * sizes.key_dim));
    uint8_t* products = reinterpret_cast<uint8_t*>(p.chunks.products) +
                        static_cast<int64_t>(item) * (ProductTiles(kForm) * kTileBytes);
    float* gates = p.chunks.gates + static_cast<int64_t>(item) * gate_floats;
    float block_sums[Memory::kProducts][8] = {}, sums[Memory::kProducts][kOwnPairs] = {};
    for (int slice = 0; slice < slices; ++slice) {
      LoadSlice(p, place, head, slice, memory);
      StoreTiles(memory, image + slice * (KeyTiles(kForm) * kTileBytes));
      if (threadIdx.x < kSlice) {
        float total = 0;
        for (int s = 0; s < kSubs; ++s) total += memory.total[s][threadIdx.x];
        gates[slice * kSlice + threadIdx.x] = Exp2(total);
      }
      if (warp < 6) MultiplySubs(memory, LaterSub(warp), EarlierSub(warp), block_sums);
      SumWithin(memory, sub, warp % 2, sums);
      __syncthreads();
    }

    for (int i = threadIdx.x; i < kTileBytes / 16; i += kThreads) {
      if constexpr (kGeneral) {
        *reinterpret_cast<uint4*>(memory.parts.written + 16 * i) = {0, 0, 0, 0};
        *reinterpret_cast<uint4*>(memory.parts.erased + 16 * i) = {0, 0, 0, 0};
      } else {
        *reinterpret_cast<uint4*>(memory.parts.reads + 16 * i) = {0, 0, 0, 0};
      }
    }
    if (warp % 2 == 1) {
#pragma unroll
      for (int product = 0; product < Memory::kProducts; ++product) {
#pragma unroll
        for (int pair = 0; pair < kOwnPairs; ++pair) {
          memory.halves[product][sub][pair][lane] = sums[product][pair];
        }
      }
    }
    __syncthreads();
    float x[Memory::kProducts];
    if (warp % 2 == 0) {
#pragma unroll
      for (int pair = 0; pair < kOwnPairs; ++pair) {
        const int i = kSub * sub + lane / 4 + PairRow(pair);
        const int j = kSub * sub + lane % 4 + PairColumn(pair);
        if (j >= i) continue;
#pragma unroll
        for (int product = 0; product < Memory::kProducts; ++product) {
          x[product] = sums[product][pair] + memory.halves[product][sub][pair][lane];
        }
        StoreParts(memory.parts, i, j, scale, x);
      }
    }
    if (warp < 6) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const int i = kSub * LaterSub(warp) + lane / 4 + n / 2 % 2 * 8;
        const int j = kSub * EarlierSub(warp) + n / 4 * 8 + 2 * (lane % 4) + n % 2;
#pragma unroll
        for (int product = 0; product < Memory::kProducts; ++product) {
          x[product] = block_sums[product][n];
        }
        StoreParts(memory.parts, i, j, scale, x);
      }
    } else {
      StoreOwn(memory, threadIdx.x - 6 * kWarp, scale);
    }
    __syncthreads();
    if constexpr (kGeneral) {
      FinishGeneral(memory, products);
    } else {
      for (int i = threadIdx.x; i < kTileBytes / 16; i += kThreads) {
        *reinterpret_cast<uint4*>(products + 16 * i) =
            *reinterpret_cast<const uint4*>(memory.parts.reads + 16 * i);
      }
    }
    __syncthreads();
  }
}

}  // namespace

void PrepareBeforeChunks(Device& device, ChunkForm form, const RuleChunks& chunks,
                         const MatrixMemoryArgs& args) {
  const auto rows_of = [](const TensorView& tensor) -> KeyRows {
    if (tensor.empty()) return {nullptr, 1};
    return {tensor.as<const float>(), static_cast<int>(tensor.shape[1])};
  };
  const BeforeParams params = {chunks,
                               rows_of(args.q),
                               rows_of(args.c),
                               rows_of(args.k),
                               rows_of(args.e),
                               rows_of(args.log_decay),
                               args.bonus.as<const float>(),
                               args.scale,
                               args.segments.offsets.as<const int>()};
  const int64_t items = static_cast<int64_t>(chunks.plan.max_chunks) * chunks.sizes.image_heads;
  const auto blocks = [&](int most) {
    return static_cast<int>(std::min<int64_t>(items, most * device.multiprocessors()));
  };
  if (form == ChunkForm::kGeneralKey) {
    LaunchOverlapping(device, "general chunks of decaying keys", BeforeKernel<true>, blocks(2),
                      kThreads, sizeof(BeforeMemory<true>), 1, params);
  } else {
    LaunchOverlapping(device, "bonus chunks of decaying keys", BeforeKernel<false>, blocks(3),
                      kThreads, sizeof(BeforeMemory<false>), 1, params);
  }
}

}  // namespace mneme::cuda::matrix_memory::chunked
