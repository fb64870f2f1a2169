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

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/matrix_memory/chunked/rule.h"
#include "kernels/cuda/matrix_memory/chunked/rule_before.cuh"

namespace mneme::cuda::matrix_memory::chunked {
namespace {

using Element = __nv_bfloat16;

constexpr int kThreads = kPrepareThreads;

// Products by which tokens read and recall each other, of entries i and j < i.
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
// The part of its own write that a token reads.
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
