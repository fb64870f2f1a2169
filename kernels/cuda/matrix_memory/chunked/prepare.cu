// What the chunks of the gated delta rule need that does not depend on the memory, for all of them
// at once: f16 tiles of k and q, and the triangular matrices T and P T of
// matrix_memory/chunked/plan.h.
#include <algorithm>

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/state_dispatch.h"
#include "kernels/cuda/matrix_memory/chunked/inverse.cuh"
#include "kernels/cuda/matrix_memory/chunked/mma.cuh"
#include "kernels/cuda/matrix_memory/chunked/plan.h"
#include "kernels/cuda/matrix_memory/chunked/planning.cuh"

namespace mneme::cuda::matrix_memory::chunked {
namespace {

// Eight warps compute; one more looks up what they will need next.
constexpr int kThreads = kPrepareThreads, kBlockThreads = kThreads + kWarp;

struct PrepareParams {
  DeltaChunkPlan plan;
  DeltaChunkSizes sizes;
  // Rows of all heads, `key_pitch` elements apart: f32, or f16 with kHalves.
  const void *q, *k;
  int key_pitch;
  const float *log_decay, *beta;  // log_decay null: no decay
  const int* offsets;
};

template <int kKeyBlocks>
struct PrepareMemory {
  // Tiles of k and q; when their products are known, T in f32 and a factor of it.
  static constexpr int kPairBytes = kKeyBlocks * 2 * kTileBytes;
  static constexpr int kInverseBytes = (kChunk * kPitch + kFactorFloats) * 4;
  alignas(1024) uint8_t pairs[kPairBytes > kInverseBytes ? kPairBytes : kInverseBytes];
  alignas(1024) uint8_t p_tile[kTileBytes];
  alignas(1024) uint8_t t_tile[kTileBytes];
  float a[kChunk * kPitch];
  struct Gates {
    float decay[kChunk], beta[kChunk];
  };
  Gates gates[2];  // of this chunk and the next, in turn
  ChunkPlace place[2];
};

// One warp: asks for a chunk's rows of k and q ahead of their use.
template <typename Key>
__device__ void FetchAhead(const PrepareParams& p, const ChunkPlace& place, int head) {
  constexpr int kLine = 128 / sizeof(Key);
  const int lines = p.sizes.key_dim / kLine;  // in a row
  const int64_t first = static_cast<int64_t>(place.entry) * p.key_pitch + head * p.sizes.key_dim;
  for (int i = threadIdx.x % kWarp; i < place.entries * lines; i += kWarp) {
    const int64_t at = first + static_cast<int64_t>(i / lines) * p.key_pitch + i % lines * kLine;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const Key*>(p.k) + at));
    asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const Key*>(p.q) + at));
  }
}

// Eight numbers on their way to f16.
template <typename Key>
struct EightKeys;
template <>
struct EightKeys<float> {
  float4 low = {0, 0, 0, 0}, high = {0, 0, 0, 0};
  __device__ void Load(const float* from) {
    low = __ldcs(reinterpret_cast<const float4*>(from));
    high = __ldcs(reinterpret_cast<const float4*>(from) + 1);
  }
  __device__ uint4 Packed() const {
    return {PackHalves(low.x, low.y), PackHalves(low.z, low.w), PackHalves(high.x, high.y),
            PackHalves(high.z, high.w)};
  }
};
template <>
struct EightKeys<__half> {
  uint4 all = {0, 0, 0, 0};
  __device__ void Load(const __half* from) { all = __ldcs(reinterpret_cast<const uint4*>(from)); }
  __device__ uint4 Packed() const { return all; }
};

// Rows of k and q to f16 tiles, in shared memory and, if `image` is given, in memory.
template <int kKeyBlocks, typename Key>
__device__ void LoadKeysAndQueries(const PrepareParams& p, const ChunkPlace& place, int head,
                                   uint8_t* pairs, uint8_t* image) {
  constexpr int kKeyDim = 64 * kKeyBlocks, kPieces = kKeyDim / 8;
  constexpr int kOwn = kChunk * kPieces / kThreads, kRowStep = kThreads / kPieces;
  constexpr int kMost = 16 / sizeof(Key);
  constexpr int kBatch = kOwn < kMost ? kOwn : kMost;
  const int rows = TileRows(place.entries);
  const int pitch = p.key_pitch;
  const int first_row = threadIdx.x / kPieces, piece = threadIdx.x % kPieces;
  const int64_t first =
      static_cast<int64_t>(place.entry + first_row) * pitch + head * kKeyDim + 8 * piece;
#pragma unroll
  for (int batch = 0; batch < 2 * kOwn / kBatch; ++batch) {
    const int is_query = batch / (kOwn / kBatch), begin = batch % (kOwn / kBatch) * kBatch;
    EightKeys<Key> keys[kBatch];  // all under way before the first is used
    const Key* from =
        static_cast<const Key*>(is_query ? p.q : p.k) + first + begin * kRowStep * pitch;
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      if (first_row + (begin + j) * kRowStep < place.entries) keys[j].Load(from);
      from += kRowStep * pitch;
    }
    const int tile = piece / 8 * 2 + is_query;
    uint8_t* own_image = image == nullptr ? nullptr : image + tile * rows * kTileRowBytes;
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int row = first_row + (begin + j) * kRowStep;
      const uint4 packed = keys[j].Packed();
      const uint32_t within = TileOffset(row, piece % 8);
      *reinterpret_cast<uint4*>(pairs + tile * kTileBytes + within) = packed;
      if (image != nullptr && row < rows) *reinterpret_cast<uint4*>(own_image + within) = packed;
    }
  }
}

// One warp: cumulative log decays and beta of a chunk.
__device__ void LoadGates(const PrepareParams& p, const ChunkPlace& place, int value_head,
                          float* decay, float* beta, float* gates) {
  const int lane = threadIdx.x % kWarp;
  float g[2], b[2];
  for (int i = 0; i < 2; ++i) {
    const int c = 2 * lane + i;
    const int64_t at = static_cast<int64_t>(place.entry + c) * p.sizes.value_heads + value_head;
    const bool decays = c < place.entries && p.log_decay != nullptr;
    g[i] = decays ? fmaxf(p.log_decay[at], kLeastLogDecay) : 0.0f;
    b[i] = c < place.entries ? p.beta[at] : 0.0f;
  }
  float sum = g[0] + g[1];
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const float before = __shfl_up_sync(kAllLanes, sum, offset);
    if (lane >= offset) sum += before;
  }
  const float end = __shfl_sync(kAllLanes, sum, kWarp - 1);
  const float cumulative[2] = {sum - g[1], sum};
  for (int i = 0; i < 2; ++i) {
    const int c = 2 * lane + i;
    const bool inside = c < place.entries;
    const float decayed = inside ? expf(cumulative[i]) : 0.0f;
    decay[c] = cumulative[i];
    beta[c] = b[i];
    gates[GateOfBeta(c)] = b[i];
    gates[GateOfDecay(c)] = decayed;
    gates[GateOfRest(c)] = inside ? expf(fminf(end - cumulative[i], 0.0f)) : 0.0f;
  }
}

// a = A by the first four warps, p_tile = P by the others; nothing is said of blocks of 16 above
// the diagonal.
template <int kKeyBlocks, bool kWgmma>
__device__ void MultiplyByKeys(PrepareMemory<kKeyBlocks>& memory, int turn) {
  const auto& gates = memory.gates[turn];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int block = warp % 4, is_query = warp / 4;
  float sums[kChunk / 2];
#pragma unroll
  for (float& sum : sums) sum = 0;
  const RightTiles pairs(memory.pairs, 0);
  BeginProducts<kWgmma>();
#pragma unroll
  for (int step = 0; step < 4 * kKeyBlocks; ++step) {
    const uint32_t keys = step / 4 * 2 * kTileBytes;
    MultiplyTiles<kWgmma>(sums, pairs, keys + is_query * kTileBytes, pairs, keys, block, step % 4);
  }
  CommitProducts<kWgmma>();
  // exp(x) = 2^(x / ln 2)
  constexpr float kLog2E = 1.4426950408889634f;
  const int row = 16 * block + lane / 4, pair = 2 * (lane % 4);
  const float own_decay[2] = {gates.decay[row] * kLog2E, gates.decay[row + 8] * kLog2E};
  const float own_beta[2] = {gates.beta[row], gates.beta[row + 8]};
  WaitForProducts<kWgmma, 0>();
  HoldSums(sums);
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    if (n / 2 > block) break;
    const int j = 8 * n + pair;
    const float2 decay = *reinterpret_cast<const float2*>(gates.decay + j);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = row + 8 * half;
      const float* sum = sums + 4 * n + 2 * half;
      float x = sum[0] * exp2f(fminf(own_decay[half] - decay.x * kLog2E, 0.0f));
      float y = sum[1] * exp2f(fminf(own_decay[half] - decay.y * kLog2E, 0.0f));
      if (is_query) {
        if (j > i) x = 0;
        if (j + 1 > i) y = 0;
        *reinterpret_cast<uint32_t*>(memory.p_tile + TileOffset(i, n) + 2 * pair) =
            PackHalves(x, y);
      } else {  // what lies on the diagonal and above is not read
        *reinterpret_cast<float2*>(memory.a + i * kPitch + j) = {own_beta[half] * x,
                                                                 own_beta[half] * y};
      }
    }
  }
}

// The warps that compute: all of one chunk and value head.
template <int kKeyBlocks, bool kWgmma, typename Key>
__device__ void PrepareChunk(const PrepareParams& p, PrepareMemory<kKeyBlocks>& memory, int turn,
                             int value_head) {
  const DeltaChunkSizes& sizes = p.sizes;
  const int group = sizes.value_heads / sizes.heads, head = value_head / group;
  const ChunkPlace place = memory.place[turn];
  const int rows = TileRows(place.entries);
  uint8_t* pairs_image = nullptr;
  if (value_head % group == 0) {
    pairs_image = reinterpret_cast<uint8_t*>(
        p.plan.keys_queries +
        (static_cast<int64_t>(place.row) * sizes.heads + rows * head) * 2 * sizes.key_dim);
  }
  LoadKeysAndQueries<kKeyBlocks, Key>(p, place, head, memory.pairs, pairs_image);
  FenceForProducts<kWgmma>();
  SynchronizePreparing();
  MultiplyByKeys<kKeyBlocks, kWgmma>(memory, turn);
  SynchronizePreparing();
  float* t = reinterpret_cast<float*>(memory.pairs);
  const int warp = threadIdx.x / kWarp;
  if (warp < 4) InvertBlock(memory.a + 16 * warp * (kPitch + 1), t + 16 * warp * (kPitch + 1));
  SynchronizePreparing();
  JoinInverses(memory.a, t, t + kChunk * kPitch);
  uint8_t* image = reinterpret_cast<uint8_t*>(
      p.plan.products +
      (static_cast<int64_t>(place.row) * sizes.value_heads + rows * value_head) * 2 * kChunk);
  RoundTriangle<__half>(t, memory.t_tile, image, rows);
  SynchronizePreparing();
  MultiplyTriangles<__half>(SharedAddress(memory.p_tile), SharedAddress(memory.t_tile), rows,
                            image + rows * kTileRowBytes);
}

template <int kKeyBlocks, bool kWgmma, typename Key>
__global__ __launch_bounds__(kBlockThreads, 2) void PrepareKernel(PrepareParams p) {
#ifndef MNEME_HOPPER_MMA
  if constexpr (kWgmma) return;  // never launched where it is not built
#endif
  LetNextKernelStart();
  WaitForPreviousKernel();
  extern __shared__ __align__(1024) uint8_t shared[];
  auto& memory = *reinterpret_cast<PrepareMemory<kKeyBlocks>*>(shared);
  const int value_heads = p.sizes.value_heads;
  const int chains = *p.plan.chains;
  const int items = p.plan.first_chunk[chains] * value_heads;
  const bool looks_ahead = threadIdx.x >= kThreads;
  // Before the first round only the look ahead works.
  for (int item = static_cast<int>(blockIdx.x) - static_cast<int>(gridDim.x), turn = 1;
       item < items; item += gridDim.x, turn ^= 1) {
    const int next = item + gridDim.x;
    if (looks_ahead && next < items) {
      const ChunkPlace place = FindChunk(p.plan, p.offsets, chains, next / value_heads);
      LoadGates(p, place, next % value_heads, memory.gates[turn ^ 1].decay,
                memory.gates[turn ^ 1].beta,
                p.plan.gates + static_cast<int64_t>(next) * kGateFloats);
      if (threadIdx.x == kThreads) memory.place[turn ^ 1] = place;
      FetchAhead<Key>(p, place, next % value_heads / (value_heads / p.sizes.heads));
    }
    if (!looks_ahead && item >= 0)
      PrepareChunk<kKeyBlocks, kWgmma, Key>(p, memory, turn, item % value_heads);
    __syncthreads();
  }
}

template <int kKeyBlocks, bool kWgmma, typename Key>
void Launch(Device& device, const PrepareParams& params) {
  const int64_t items = static_cast<int64_t>(params.plan.max_chunks) * params.sizes.value_heads;
  const int blocks = static_cast<int>(std::min<int64_t>(items, 2 * device.multiprocessors()));
  LaunchOverlapping(device, "preparation of delta chunks", PrepareKernel<kKeyBlocks, kWgmma, Key>,
                    blocks, kBlockThreads, sizeof(PrepareMemory<kKeyBlocks>), 1, params);
}

template <bool kWgmma, typename Key>
void LaunchFor(Device& device, const PrepareParams& params) {
  ForKeyDim(params.sizes.key_dim,
            [&]<int kKeyDim>() { Launch<kKeyDim / 64, kWgmma, Key>(device, params); });
}

}  // namespace

void PrepareDeltaChunks(Device& device, const DeltaChunkPlan& plan, const MatrixMemoryArgs& args,
                        const DeltaChunkSizes& sizes, bool hopper, bool half_keys) {
  const PrepareParams params = {plan, sizes, args.q.data, args.k.data,
                                // Half of a row's memory is left empty.
                                sizes.heads * sizes.key_dim * (half_keys ? 2 : 1),
                                args.log_decay.as<const float>(), args.beta.as<const float>(),
                                args.segments.offsets.as<const int>()};
  if (half_keys) {
    return hopper ? LaunchFor<true, __half>(device, params)
                  : LaunchFor<false, __half>(device, params);
  }
  hopper ? LaunchFor<true, float>(device, params) : LaunchFor<false, float>(device, params);
}

}  // namespace mneme::cuda::matrix_memory::chunked
