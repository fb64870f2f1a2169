// Chunks of memories whose keys each decay (ChunkForm::kKey, kDeltaKey), for all of them at once:
// tiles of decayed k and q, and products of keys and queries in which every key has its own decay.
//
//   A[i, j] = sum_d q_i[d] k_j[d] exp(G_i[d] - G_j[d])        j <= i
//
// exp(G_i) and exp(-G_j) apart would leave f32's range. For entries i of sub-chunk I and j of an
// earlier J, with E the sum of J's log decays, L sums of log decays since the start of the
// sub-chunk, and B those of the sub-chunks between:
//   G_i - G_j = L_i + B + (E - L_j)
// of which each part is at most 0: a product of tensor cores, of q exp(L + B) and k exp(E - L).
// Within a sub-chunk A is summed as written, in f32.
#include <algorithm>

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
static_assert(kSlicePitch == kPitch && kSubs * kSlice == kThreads);

struct KeyParams {
  RuleChunks chunks;
  const float *q, *k, *log_decay, *beta;
  float scale;  // of P, with the delta correction
  const int* offsets;
};

struct KeyMemory {
  union {
    struct {
      float q[kSliceFloats], k[kSliceFloats];
      float local[kSliceFloats];  // L
    };
    struct {
      float a[kSliceFloats];
      float t[kSliceFloats];
      float factor[kFactorFloats];
    };
  };
  alignas(1024) uint8_t p_tile[kTileBytes];
  // While slices are summed nobody needs these tiles; then nobody needs the totals.
  union {
    alignas(1024) uint8_t t_tile[kTileBytes];
    float total[kSubs][kSlice];
  };
  float halves[2][kSubs][kOwnPairs][kWarp];  // sums of half of the keys
  float beta[kChunk];
};

__device__ void LoadSlice(const KeyParams& p, const ChunkPlace& place, int head, int slice,
                          KeyMemory& memory) {
  const RuleSizes& sizes = p.chunks.sizes;
  const int heads = sizes.image_heads;
  const int own[3] = {head / (heads / sizes.query_heads), head / (heads / sizes.key_heads),
                      head / (heads / sizes.decay_heads)};
  const int count[3] = {sizes.query_heads, sizes.key_heads, sizes.decay_heads};
  const float* const from[3] = {p.q, p.k, p.log_decay};
  float* const to[3] = {memory.q, memory.k, memory.local};
#pragma unroll
  for (int tensor = 0; tensor < 3; ++tensor) {
    const int row = threadIdx.x / 16, column = threadIdx.x % 16 * 4;
    const int pitch = count[tensor] * sizes.key_dim;
    const float* source = from[tensor] + static_cast<int64_t>(place.entry + row) * pitch +
                          own[tensor] * sizes.key_dim + slice * kSlice + column;
    const uint32_t target = SharedAddress(to[tensor] + row * kSlicePitch + column);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      CopyAsync16(target + 16 * i * kSlicePitch * sizeof(float),
                  source + static_cast<int64_t>(16 * i) * pitch, row + 16 * i < place.entries);
    }
  }
  AwaitCopies();
  __syncthreads();
  const int sub = threadIdx.x / kSlice, column = threadIdx.x % kSlice;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kSub; ++i) {
    float* const at = memory.local + (kSub * sub + i) * kSlicePitch + column;
    sum += Log2Decay(*at);
    *at = sum;
  }
  memory.total[sub][column] = sum;
  __syncthreads();
}

// Tiles of a slice, to memory.
template <bool kDelta>
__device__ void StoreTiles(const KeyMemory& memory, uint8_t* image) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = threadIdx.x / 8 + 32 * i, piece = threadIdx.x % 8, sub = row / kSub;
    float q[8], k[8], local[8], decayed[8];
    const int at = row * kSlicePitch + 8 * piece;
    LoadEight(memory.q + at, q);
    LoadEight(memory.k + at, k);
    LoadEight(memory.local + at, local);
    float before[8] = {}, after[8] = {};
    AddDecaysAround(memory.total, 8 * piece, sub, local, before, after);
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const float decay = Exp2(before[c] + local[c]);
      q[c] *= decay;
      decayed[c] = k[c] * decay;
      k[c] *= Exp2(after[c]);
    }
    const uint32_t to = TileOffset(row, piece);
    if (kDelta) *reinterpret_cast<uint4*>(image + to) = PackEight(decayed);
    uint8_t* queries = image + (kDelta ? kTileBytes : 0);
    *reinterpret_cast<uint4*>(queries + to) = PackEight(q);
    *reinterpret_cast<uint4*>(queries + kTileBytes + to) = PackEight(k);
  }
}

// A warp's block of products of two sub-chunks: of q in sums, of k in key_sums.
template <bool kDelta>
__device__ void MultiplySubs(const KeyMemory& memory, int later, int earlier, float (&sums)[8],
                             float (&key_sums)[8]) {
  const int lane = threadIdx.x % kWarp;
  const int row = kSub * later + lane / 4, from = kSub * earlier + lane / 4;
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    uint32_t left[4], key_left[4], right[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = 16 * step + 8 * half + 2 * (lane % 4);
      const float2 end = *reinterpret_cast<const float2*>(&memory.total[earlier][column]);
      float2 between = {0, 0};
      for (int s = earlier + 1; s < later; ++s) {
        const float2 total = *reinterpret_cast<const float2*>(&memory.total[s][column]);
        between.x += total.x, between.y += total.y;
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int at = (row + 8 * r) * kSlicePitch + column;
        const float2 q = *reinterpret_cast<const float2*>(memory.q + at);
        const float2 local = *reinterpret_cast<const float2*>(memory.local + at);
        const float x = Exp2(local.x + between.x), y = Exp2(local.y + between.y);
        left[2 * half + r] = PackPair<Element>(q.x * x, q.y * y);
        if (kDelta) {
          const float2 k = *reinterpret_cast<const float2*>(memory.k + at);
          key_left[2 * half + r] = PackPair<Element>(k.x * x, k.y * y);
        }
        const int other = (from + 8 * r) * kSlicePitch + column;
        const float2 k = *reinterpret_cast<const float2*>(memory.k + other);
        const float2 l = *reinterpret_cast<const float2*>(memory.local + other);
        right[2 * r + half] = PackPair<Element>(k.x * Exp2(fminf(end.x - l.x, 0.0f)),
                                                k.y * Exp2(fminf(end.y - l.y, 0.0f)));
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      Mma<Element>(sums + 4 * n, left, right[2 * n], right[2 * n + 1]);
      if (kDelta) Mma<Element>(key_sums + 4 * n, key_left, right[2 * n], right[2 * n + 1]);
    }
  }
}

// A warp's half of a slice's keys.
template <bool kDelta>
__device__ void SumWithin(const KeyMemory& memory, int sub, int half, float (&sums)[kOwnPairs],
                          float (&key_sums)[kOwnPairs]) {
  const int lane = threadIdx.x % kWarp;
  const int first = kSub * sub * kSlicePitch + 32 * half;
  const int row = first + lane / 4 * kSlicePitch, column = first + lane % 4 * kSlicePitch;
#pragma unroll 1
  for (int c = 0; c < 32; c += 4) {
    float q[2][4], key[2][4], own[2][4];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at = row + 8 * r * kSlicePitch + c;
      *reinterpret_cast<float4*>(q[r]) = *reinterpret_cast<const float4*>(memory.q + at);
      *reinterpret_cast<float4*>(own[r]) = *reinterpret_cast<const float4*>(memory.local + at);
      if (kDelta) {
        *reinterpret_cast<float4*>(key[r]) = *reinterpret_cast<const float4*>(memory.k + at);
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int at = column + 4 * j * kSlicePitch + c;
      float k[4], local[4];
      *reinterpret_cast<float4*>(k) = *reinterpret_cast<const float4*>(memory.k + at);
      *reinterpret_cast<float4*>(local) = *reinterpret_cast<const float4*>(memory.local + at);
#pragma unroll
      for (int pair = 0; pair < kOwnPairs; ++pair) {
        if (PairColumn(pair) != 4 * j) continue;
        const int r = PairRow(pair) / 8;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float x = k[i] * Exp2(fminf(own[r][i] - local[i], 0.0f));
          sums[pair] += q[r][i] * x;
          if (kDelta) key_sums[pair] += key[r][i] * x;
        }
      }
    }
  }
}

template <bool kDelta>
__global__ __launch_bounds__(kThreads, 3) void KeyKernel(KeyParams p) {
  constexpr ChunkForm kForm = kDelta ? ChunkForm::kDeltaKey : ChunkForm::kKey;
  LetNextKernelStart();
  WaitForPreviousKernel();
  extern __shared__ __align__(1024) uint8_t shared[];
  KeyMemory& memory = *reinterpret_cast<KeyMemory*>(shared);
  const RuleSizes& sizes = p.chunks.sizes;
  const int heads = sizes.image_heads, chains = *p.chunks.plan.chains;
  const int items = p.chunks.plan.first_chunk[chains] * heads;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int slices = sizes.key_dim / kSlice, gate_floats = GateFloats(kForm, sizes.key_dim);
  const int sub = warp / 2;
  const float scale = kDelta ? p.scale : 1.0f;
  for (int item = blockIdx.x; item < items; item += gridDim.x) {
    const int chunk = item / heads, head = item % heads;
    const ChunkPlace place = FindChunk(p.chunks.plan, p.offsets, chains, chunk);
    uint8_t* image = reinterpret_cast<uint8_t*>(
        p.chunks.keys + static_cast<int64_t>(item) * (KeyTiles(kForm) * kChunk * sizes.key_dim));
    uint8_t* products = reinterpret_cast<uint8_t*>(p.chunks.products) +
                        static_cast<int64_t>(item) * (ProductTiles(kForm) * kTileBytes);
    float* gates = p.chunks.gates + static_cast<int64_t>(item) * gate_floats;
    if (kDelta && threadIdx.x < kChunk) {
      const int own = head / (heads / sizes.beta_heads), i = threadIdx.x;
      const float beta =
          i < place.entries ? p.beta[static_cast<int64_t>(place.entry + i) * sizes.beta_heads + own]
                            : 0.0f;
      memory.beta[i] = gates[sizes.key_dim + i] = beta;
    }
    float block_sums[8] = {}, block_key_sums[8] = {};
    float sums[kOwnPairs] = {}, key_sums[kOwnPairs] = {};
    for (int slice = 0; slice < slices; ++slice) {
      LoadSlice(p, place, head, slice, memory);
      StoreTiles<kDelta>(memory, image + slice * (KeyTiles(kForm) * kTileBytes));
      if (threadIdx.x < kSlice) {
        float total = 0;
        for (int s = 0; s < kSubs; ++s) total += memory.total[s][threadIdx.x];
        gates[slice * kSlice + threadIdx.x] = Exp2(total);
      }
      if (warp < 6) {
        MultiplySubs<kDelta>(memory, LaterSub(warp), EarlierSub(warp), block_sums, block_key_sums);
      }
      SumWithin<kDelta>(memory, sub, warp % 2, sums, key_sums);
      __syncthreads();
    }

    for (int i = threadIdx.x; i < kTileBytes / 16; i += kThreads) {
      *reinterpret_cast<uint4*>(memory.p_tile + 16 * i) = {0, 0, 0, 0};
    }
    if (warp % 2 == 1) {
#pragma unroll
      for (int pair = 0; pair < kOwnPairs; ++pair) {
        memory.halves[0][sub][pair][lane] = sums[pair];
        if (kDelta) memory.halves[1][sub][pair][lane] = key_sums[pair];
      }
    }
    __syncthreads();
    if (warp % 2 == 0) {
#pragma unroll
      for (int pair = 0; pair < kOwnPairs; ++pair) {
        const int i = kSub * sub + lane / 4 + PairRow(pair);
        const int j = kSub * sub + lane % 4 + PairColumn(pair);
        if (j <= i) {
          StoreProduct(memory.p_tile, i, j,
                       scale * (sums[pair] + memory.halves[0][sub][pair][lane]));
        }
        if (kDelta && j < i) {
          memory.a[i * kSlicePitch + j] =
              memory.beta[i] * (key_sums[pair] + memory.halves[1][sub][pair][lane]);
        }
      }
    }
    if (warp < 6) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const int i = kSub * LaterSub(warp) + lane / 4 + n / 2 % 2 * 8;
        const int j = kSub * EarlierSub(warp) + n / 4 * 8 + 2 * (lane % 4) + n % 2;
        StoreProduct(memory.p_tile, i, j, scale * block_sums[n]);
        if (kDelta) memory.a[i * kSlicePitch + j] = memory.beta[i] * block_key_sums[n];
      }
    }
    __syncthreads();
    if constexpr (kDelta) {
      if (warp < 4) {
        const int corner = kSub * warp * (kPitch + 1);
        InvertBlock(memory.a + corner, memory.t + corner);
      }
      __syncthreads();
      JoinInverses(memory.a, memory.t, memory.factor);
      RoundTriangle<Element>(memory.t, memory.t_tile, products, kChunk);
      __syncthreads();
      MultiplyTriangles<Element>(SharedAddress(memory.p_tile), SharedAddress(memory.t_tile), kChunk,
                                 products + kTileBytes);
    } else {
      for (int i = threadIdx.x; i < kTileBytes / 16; i += kThreads) {
        *reinterpret_cast<uint4*>(products + 16 * i) =
            *reinterpret_cast<const uint4*>(memory.p_tile + 16 * i);
      }
    }
    __syncthreads();
  }
}

}  // namespace

void PrepareKeyChunks(Device& device, ChunkForm form, const RuleChunks& chunks,
                      const MatrixMemoryArgs& args) {
  const KeyParams params = {chunks,
                            args.q.as<const float>(),
                            args.k.as<const float>(),
                            args.log_decay.as<const float>(),
                            args.beta.as<const float>(),
                            args.scale,
                            args.segments.offsets.as<const int>()};
  const int64_t items = static_cast<int64_t>(chunks.plan.max_chunks) * chunks.sizes.image_heads;
  const int blocks = static_cast<int>(std::min<int64_t>(items, 3 * device.multiprocessors()));
  if (form == ChunkForm::kKey) {
    LaunchOverlapping(device, "chunks of decaying keys", KeyKernel<false>, blocks, kThreads,
                      sizeof(KeyMemory), 1, params);
  } else {
    LaunchOverlapping(device, "delta chunks of decaying keys", KeyKernel<true>, blocks, kThreads,
                      sizeof(KeyMemory), 1, params);
  }
}

}  // namespace mneme::cuda::matrix_memory::chunked
