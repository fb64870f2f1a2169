// The sequential half of the chunked gated delta rule: carries a memory's matrix from chunk to
// chunk. With S the matrix at the start of a chunk, and T, P of matrix_memory/chunked/plan.h:
//
//   V' = beta v - beta exp(G) S k        U = V' T^T        o = scale (exp(G) S q + V' (P T)^T)
//   S <- exp(G_end) S + sum_j exp(G_end - G_j) U_j k_j^T
//
// Rows of S do not mix. A warp keeps 16 of them in f32 as the sums of the last product; rounded to
// f16, they are the left operand of the next chunk's first one. V' and U likewise go from sums to
// operands within a lane, so that the four warps of a group only share what they read.
//
// Range. All of it is linear in a row's v and S, so each row is kept multiplied by a power of two,
// `unit`, that maps a bound of its values to 2^7: f16 then loses nothing to overflow and next to
// nothing to subnormals. The bound needs |k| <= 1 (MatrixMemoryArgs::long_keys is not set) and beta
// <= 2: a token adds at most 2 |v| to a row's norm. It is replaced by the norm itself every
// kNormInterval chunks.
#include <algorithm>

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/state_dispatch.h"
#include "kernels/cuda/matrix_memory/chunked/copy.cuh"
#include "kernels/cuda/matrix_memory/chunked/mma.cuh"
#include "kernels/cuda/matrix_memory/chunked/plan.h"
#include "kernels/cuda/matrix_memory/chunked/state.cuh"

namespace mneme::cuda::matrix_memory::chunked {
namespace {

constexpr int kGroupThreads = 128;  // four warps that issue a wgmma
constexpr int kNormInterval = 4;
constexpr float kBoundSlack =
    1.01f;  // for its own rounding, and keys that are units but for theirs

__device__ inline float QuadMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}
__device__ inline float QuadSum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

// The power of two that brings `bound` to [2^6, 2^7), and the inverse of a power of two.
__device__ inline float UnitOf(float bound) {
  const int exponent = __float_as_int(fmaxf(bound, 0x1p-100f)) >> 23;  // biased by 127
  return __int_as_float((260 - exponent) << 23);
}
__device__ inline float InverseOf(float unit) {
  return __int_as_float((254 << 23) - __float_as_int(unit));
}

// Norms of this lane's two rows of the matrix.
template <int n>
__device__ inline void RowNorms(const float (&s)[n], float (&norms)[2]) {
  float squares[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < n; i += 4) {
    squares[0] += s[i] * s[i] + s[i + 1] * s[i + 1];
    squares[1] += s[i + 2] * s[i + 2] + s[i + 3] * s[i + 3];
  }
  for (int r = 0; r < 2; ++r) norms[r] = sqrtf(QuadSum(squares[r])) * kBoundSlack;
}

template <int kKeyBlocks, int kStages, int kGroups, bool kWgmma, typename State>
__global__ __launch_bounds__(kGroups* kGroupThreads, 1) void ChainKernel(ChainParams p) {
#ifndef MNEME_HOPPER_MMA
  if constexpr (kWgmma) return;  // never launched where it is not built
#endif
  constexpr int kThreads = kGroups * kGroupThreads, kKeyDim = 64 * kKeyBlocks;
  constexpr int kPitch = RowPitch<State>(kKeyDim);
  constexpr int kSums = kKeyDim / 2;  // of the matrix, per lane
  using Memory = ChainMemory<kKeyBlocks, kStages, kGroups>;
  LetNextKernelStart();
  WaitForPreviousKernel();
  extern __shared__ __align__(1024) uint8_t shared[];
  Memory& memory = *reinterpret_cast<Memory*>(shared);
  const DeltaChunkSizes& sizes = p.sizes;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  // Rows l / 4 and l / 4 + 8 of fragments are rows `row` and `row` + 1 of the warp's; columns
  // `pair` and the next.
  const int row = lane / 4 * 2, pair = lane % 4 * 2;
  const int tiles = (sizes.value_dim + kGroups * kGroupRows - 1) / (kGroups * kGroupRows);
  const int items = *p.plan.chains * sizes.value_heads * tiles;
  const int value_pitch = sizes.value_heads * sizes.value_dim;
  float* values = memory.values[warp / 4] + warp % 4 * 16;
  const float* own_values = values + pair * kValuePitch + row;

#ifdef MNEME_HOPPER_MMA
  if (kStages > 1 && threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) InitBulkBarrier(&memory.full[stage]);
    FenceBulkBarriers();
  }
#endif
  uint32_t copied = 0;  // chunks that this block has been through
  for (int item = blockIdx.x; item < items; item = memory.item) {
    if (threadIdx.x == 0) {
      FindChain(p, item, tiles, kGroups * kGroupRows, &memory.chain);
      for (int n = 0; kStages > 1 && n < kStages && n * kChunk < memory.chain.entries; ++n) {
        StartCopy<kKeyBlocks>(memory, (copied + n) % kStages, ImagesOf(memory.chain, sizes, n));
      }
    }
    __syncthreads();
    const int first_value = memory.chain.value + warp * 16;  // this warp's first row
    const bool active = first_value < sizes.value_dim;
    const int column = memory.chain.value_head * sizes.value_dim + first_value;
    int rest = memory.chain.entries, own_rest = active ? rest : 0;
    const int64_t entry = memory.chain.entry;
    const float* from =
        active ? p.v + (entry + lane / 4) * value_pitch + column + lane % 4 * 4 : p.v;
    float* to = p.out + (entry + pair) * value_pitch + column + row;
    StartValues(from, value_pitch, own_rest, values);
    float s[kSums];
    {
      const State* state = reinterpret_cast<const State*>(memory.chain.state) +
                           static_cast<int64_t>(column + row) * kPitch + pair;
      const bool load = active && memory.chain.fresh == 0;
      const float2 scale = {load ? RowScale(state - pair, kKeyDim) : 0.0f,
                            load ? RowScale(state - pair + kPitch, kKeyDim) : 0.0f};
#pragma unroll
      for (int i = 0; i < kSums; i += 4) {
        const float2 zero = {0, 0};
        const float2 x = load ? LoadPair(state + 2 * i) : zero;
        const float2 y = load ? LoadPair(state + 2 * i + kPitch) : zero;
        s[i] = x.x, s[i + 1] = x.y, s[i + 2] = y.x, s[i + 3] = y.y;
        if constexpr (std::is_same_v<State, int8_t>) {
          s[i] *= scale.x, s[i + 1] *= scale.x, s[i + 2] *= scale.y, s[i + 3] *= scale.y;
        }
      }
    }
    if (threadIdx.x == 0) memory.item = gridDim.x + atomicAdd(p.plan.taken, 1);
    float bound[2], unit[2];
    RowNorms(s, bound);
    for (int r = 0; r < 2; ++r) unit[r] = UnitOf(bound[r]);
#pragma unroll
    for (int i = 0; i < kSums; ++i) s[i] *= unit[i / 2 % 2];

    for (int n = 0; rest > 0; ++n, ++copied) {
      const int entries = min(kChunk, rest);
      const int stage = copied % kStages;

      // The unit of this chunk.
      AwaitCopies();
      __syncwarp();
      float2 largest = {0, 0};
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float2 x = LoadPair(own_values + (i / 2 * 8 + i % 2) * kValuePitch);
        largest = {fmaxf(largest.x, fabsf(x.x)), fmaxf(largest.y, fabsf(x.y))};
      }
      largest = {QuadMax(largest.x), QuadMax(largest.y)};
      float ratio[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float before = InverseOf(unit[r]);
        unit[r] = UnitOf(bound[r] + (r == 0 ? largest.x : largest.y));
        ratio[r] = unit[r] * before;
      }

      if constexpr (kStages > 1) {
#ifdef MNEME_HOPPER_MMA
        BulkWait(&memory.full[stage], copied / kStages % 2);
#endif
      } else {
        CopyTogether<kKeyBlocks, kThreads>(memory, ImagesOf(memory.chain, sizes, n));
        AwaitCopies();
        __syncthreads();
      }
      auto& images = memory.stages[stage];
      const RightTiles pairs(images.pairs, 2 * kTileBytes), products(images.products, 0);
      const float* gates = memory.gates[stage];
      const float end_decay = gates[GateOfDecay(entries - 1)];
      bound[0] = (end_decay * bound[0] + 2 * kChunk * largest.x) * kBoundSlack;
      bound[1] = (end_decay * bound[1] + 2 * kChunk * largest.y) * kBoundSlack;
      if (entries <= kChunk - kRowGroup) {
        // Rows of k and T past the end hold what was there before, and meet zeros: no NaN, please.
        const int begin = TileRows(entries) * (kTileRowBytes / 16);
        const int pieces = kTileBytes / 16 - begin;
        for (int i = threadIdx.x; i < (kKeyBlocks + 1) * pieces; i += kThreads) {
          const int tile = i / pieces;
          uint8_t* start =
              tile < kKeyBlocks ? images.pairs + tile * 2 * kTileBytes : images.products;
          *reinterpret_cast<uint4*>(start + 16 * (begin + i % pieces)) = {0, 0, 0, 0};
        }
        FenceForProducts<kWgmma>();
        __syncthreads();
      }

      // S k and S q.
      float sums[64];
#pragma unroll
      for (int i = 0; i < 64; ++i) sums[i] = 0;
#pragma unroll
      for (int block = 0; block < kKeyBlocks; ++block) {
        uint32_t left[4][4];
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          left[i / 4][i % 4] = PackHalves(s[32 * block + 2 * i], s[32 * block + 2 * i + 1]);
        }
        BeginProducts<kWgmma>();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          MultiplyRows<kWgmma>(sums, left[step], pairs, block * 2 * kTileBytes, step);
        }
        CommitProducts<kWgmma>();
        if (block + 1 < kKeyBlocks) WaitForProducts<kWgmma, 1>();
      }

      WaitForProducts<kWgmma, 0>();
      HoldSums(sums);

      // V' as the next left operand, and the part of o that is known.
      uint32_t left[4][4];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float4 gate = *reinterpret_cast<const float4*>(gates + GateOfBeta(8 * i + pair));
        const float2 x = LoadPair(own_values + 8 * i * kValuePitch);
        const float2 y = LoadPair(own_values + (8 * i + 1) * kValuePitch);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float* known = sums + 4 * i + 2 * r;
          const float decay0 = gate.z * ratio[r], decay1 = gate.w * ratio[r];
          const float v0 = (r == 0 ? x.x : x.y) * unit[r], v1 = (r == 0 ? y.x : y.y) * unit[r];
          left[i / 2][i % 2 * 2 + r] =
              PackHalves(gate.x * (v0 - decay0 * known[0]), gate.y * (v1 - decay1 * known[1]));
          known[0] = known[1] = 0;
          known[32] *= decay0;
          known[33] *= decay1;
        }
      }
      __syncwarp();
      if (rest > kChunk) {
        if (active) from += static_cast<int64_t>(kChunk) * value_pitch;
        StartValues(from, value_pitch, own_rest - kChunk, values);
      }

      // U and o.
      HoldSums(sums);
      BeginProducts<kWgmma>();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        MultiplyRows<kWgmma>(sums, left[step], products, 0, step);
      }
      CommitProducts<kWgmma>();
      const float factor[2] = {end_decay * ratio[0], end_decay * ratio[1]};
#pragma unroll
      for (int i = 0; i < kSums; ++i) s[i] *= factor[i / 2 % 2];
      WaitForProducts<kWgmma, 0>();
      HoldSums(sums);

      // Update.
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float2 rest = LoadPair(gates + GateOfRest(8 * i + pair));
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          left[i / 2][i % 2 * 2 + r] =
              PackHalves(sums[4 * i + 2 * r] * rest.x, sums[4 * i + 2 * r + 1] * rest.y);
        }
      }
      HoldSums(s);
      BeginProducts<kWgmma>();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        MultiplyColumns<kWgmma, kKeyBlocks>(s, left[step], pairs, step);
      }
      CommitProducts<kWgmma>();
      {
        const float inverse[2] = {InverseOf(unit[0]) * p.scale, InverseOf(unit[1]) * p.scale};
        float* line = to;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float* own = sums + 32 + 4 * i;
          if (own_rest > 8 * i + pair) StorePair(line, own[0] * inverse[0], own[2] * inverse[1]);
          if (own_rest > 8 * i + pair + 1) {
            StorePair(line + value_pitch, own[1] * inverse[0], own[3] * inverse[1]);
          }
          line += 8 * value_pitch;
        }
      }
      to += static_cast<int64_t>(kChunk) * value_pitch;
      const bool copy = kStages > 1 && threadIdx.x == 0 && rest > kStages * kChunk;
      ChunkImages next = {};
      if (copy) next = ImagesOf(memory.chain, sizes, n + kStages);
      WaitForProducts<kWgmma, 0>();
      HoldSums(s);
      if (kStages > 1) FenceForProducts<kWgmma>();  // a copy replaces gates that were read
      __syncthreads();
      if (copy) StartCopy<kKeyBlocks>(memory, stage, next);
      rest -= kChunk, own_rest -= kChunk;
      if (n % kNormInterval == kNormInterval - 1) {
        RowNorms(s, bound);
        for (int r = 0; r < 2; ++r) bound[r] *= InverseOf(unit[r]);
      }
    }
    if (active) {
      State* state = reinterpret_cast<State*>(memory.chain.state) +
                     static_cast<int64_t>(column + row) * kPitch + pair;
      const float inverse[2] = {InverseOf(unit[0]), InverseOf(unit[1])};
      if constexpr (std::is_same_v<State, int8_t>) {
        StoreInts(s, inverse, lane % 4 == 0, kKeyDim, state - pair, pair);
      } else {
#pragma unroll
        for (int i = 0; i < kSums; i += 4) {
          StorePair(state + 2 * i, s[i] * inverse[0], s[i + 1] * inverse[0]);
          StorePair(state + 2 * i + kPitch, s[i + 2] * inverse[1], s[i + 3] * inverse[1]);
        }
      }
    }
    __syncthreads();
  }
}

template <int kKeyBlocks, int kStages, int kGroups, bool kWgmma, typename State>
void Launch(Device& device, const ChainParams& params) {
  const int rows = kGroups * kGroupRows;
  const int64_t items = static_cast<int64_t>(params.plan.max_chains) * params.sizes.value_heads *
                        ((params.sizes.value_dim + rows - 1) / rows);
  // Small memories leave room for several blocks on a multiprocessor.
  const int blocks = static_cast<int>(std::min<int64_t>(items, 2 * device.multiprocessors()));
  LaunchOverlapping(
      device, "delta chains", ChainKernel<kKeyBlocks, kStages, kGroups, kWgmma, State>, blocks,
      kGroups * kGroupThreads, sizeof(ChainMemory<kKeyBlocks, kStages, kGroups>), 1, params);
}

template <int kKeyBlocks, typename State>
void LaunchFor(Device& device, const ChainParams& params, bool hopper) {
  if (!hopper) return Launch<kKeyBlocks, 1, 1, false, State>(device, params);
  // Few chains: one group of warps has a multiprocessor to itself. Many: two share the copies.
  const int64_t groups = static_cast<int64_t>(params.plan.max_chains) * params.sizes.value_heads *
                         ((params.sizes.value_dim + kGroupRows - 1) / kGroupRows);
  if (groups <= device.multiprocessors() || params.sizes.value_dim <= kGroupRows) {
    return Launch<kKeyBlocks, 2, 1, true, State>(device, params);
  }
  Launch<kKeyBlocks, 2, 2, true, State>(device, params);
}

}  // namespace

int DeltaChunkSharedBytes(int key_dim) {
  return key_dim <= 64    ? sizeof(ChainMemory<1, 1, 1>)
         : key_dim <= 128 ? sizeof(ChainMemory<2, 1, 1>)
                          : sizeof(ChainMemory<4, 1, 1>);
}

bool DeltaChunksBuiltForHopper() {
  static const bool built = [] {
    cudaFuncAttributes attributes = {};
    return cudaFuncGetAttributes(&attributes, ChainKernel<4, 2, 2, true, float>) == cudaSuccess &&
           attributes.ptxVersion >= 90;
  }();
  return built;
}

void RunDeltaChains(Device& device, const DeltaChunkPlan& plan, const MatrixMemoryArgs& args,
                    const DeltaChunkSizes& sizes, bool hopper) {
  const ChainParams params = {plan,
                              sizes,
                              args.scale,
                              args.v.as<const float>(),
                              args.out.as<float>(),
                              ArraysOf(args.segments),
                              args.state};
  ForState(args.state.dtype, sizes.key_dim, [&]<typename State, int kKeyDim>() {
    LaunchFor<kKeyDim / 64, State>(device, params, hopper);
  });
}

}  // namespace mneme::cuda::matrix_memory::chunked
