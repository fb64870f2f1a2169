// Chunks of memories whose keys do not decay apart (ChunkForm::kHead, kValue): tiles of k and q and
// their products, for all chunks at once. Where values decay apart, also what a chunk's tokens read
// of each other, and what the chains want of values:
//
//   sum_{j <= i} P[i, j] exp(G_i - G_j) v_j         P = Q K^T, per value
//
// For entries i of sub-chunk I and j of an earlier J, with E the sum of J's log decays, L sums of
// log decays since the start of the sub-chunk, and B those of the sub-chunks between:
//   G_i - G_j = L_i + B + (E - L_j)
// of which each part is at most 0, so that the sum over j is one of tensor cores. Within a
// sub-chunk it is done as written, in f32.
#include <algorithm>

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/matrix_memory/chunked/rule.h"
#include "kernels/cuda/matrix_memory/chunked/rule_tiles.cuh"

namespace mneme::cuda::matrix_memory::chunked {
namespace {

using Element = __nv_bfloat16;

constexpr int kThreads = 256;
constexpr int kSliceFloats = kChunk * kSlicePitch;

struct HeadParams {
  RuleChunks chunks;
  const float *q, *k, *v, *log_decay;
  float* out;
  float scale;
  int constant_decay;
  const int* offsets;
};

struct TileMemory {
  alignas(1024) uint8_t tiles[2][2][kTileBytes];  // of q and k of a slice, in turn
  float decay[kChunk];
};
struct ValueMemory {
  union {
    TileMemory keys;
    struct {
      float products[kSliceFloats];
      float earlier[kSliceFloats];  // read of earlier sub-chunks, less exp(L_i)
    };
  };
  float v[kSliceFloats];
  float local[kSliceFloats];  // L
  float total[kSubs][kSlice];
};

// One warp: sums of log decays of a head, and the gates made of them.
__device__ void LoadGates(const HeadParams& p, const ChunkPlace& place, int chunk, int head,
                          float* decay) {
  const RuleSizes& sizes = p.chunks.sizes;
  const int lane = threadIdx.x % kWarp;
  const int own = head / (sizes.product_heads / sizes.decay_heads);
  float g[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int c = 2 * lane + i;
    if (p.log_decay == nullptr || c >= place.entries) continue;
    const int64_t row = p.constant_decay != 0 ? 0 : place.entry + c;
    g[i] = Log2Decay(p.log_decay[row * sizes.decay_heads + own]);
  }
  float sum = g[0] + g[1];
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const float before = __shfl_up_sync(kAllLanes, sum, offset);
    if (lane >= offset) sum += before;
  }
  const float end = __shfl_sync(kAllLanes, sum, kWarp - 1);
  const float2 cumulative = {sum - g[1], sum};
  *reinterpret_cast<float2*>(decay + 2 * lane) = cumulative;
  float* gates = p.chunks.gates + (static_cast<int64_t>(chunk) * sizes.product_heads + head) *
                                      GateFloats(ChunkForm::kHead, 0);
  *reinterpret_cast<float2*>(gates + 2 * lane) = {Exp2(cumulative.x), Exp2(cumulative.y)};
  *reinterpret_cast<float2*>(gates + kChunk + 2 * lane) = {Exp2(fminf(end - cumulative.x, 0.0f)),
                                                           Exp2(fminf(end - cumulative.y, 0.0f))};
}

// What a thread brings of a slice: two pieces of eight keys, 32 rows apart, of q and of k.
struct Pieces {
  float x[2][2][8];
  __device__ void Load(const float* q, const float* k, int q_pitch, int k_pitch, int rows) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool inside = static_cast<int>(threadIdx.x) / 8 + 32 * i < rows;
#pragma unroll
      for (int c = 0; c < 8; ++c) x[0][i][c] = x[1][i][c] = 0;
      if (inside) LoadEight(q + static_cast<int64_t>(32 * i) * q_pitch, x[0][i]);
      if (inside) LoadEight(k + static_cast<int64_t>(32 * i) * k_pitch, x[1][i]);
    }
  }
};

// sums: of warp w, rows 16 (w % 4) .. of Q K^T, columns 32 (w / 4) ..; blocks above the diagonal
// are zero. Writes the tiles to `image`, if given.
__device__ void MultiplyKeys(const HeadParams& p, const ChunkPlace& place, int query_head,
                             int key_head, TileMemory& memory, uint8_t* image, float (&sums)[16]) {
  const RuleSizes& sizes = p.chunks.sizes;
  const int row = threadIdx.x / 8, piece = threadIdx.x % 8;
  const int q_pitch = sizes.query_heads * sizes.key_dim, k_pitch = sizes.key_heads * sizes.key_dim;
  const int64_t entry = place.entry + row;
  const float* q = p.q + entry * q_pitch + query_head * sizes.key_dim + 8 * piece;
  const float* k = p.k + entry * k_pitch + key_head * sizes.key_dim + 8 * piece;
  const int block = threadIdx.x / kWarp % 4, half = threadIdx.x / kWarp / 4;
#pragma unroll
  for (float& sum : sums) sum = 0;
  Pieces pieces;
  pieces.Load(q, k, q_pitch, k_pitch, place.entries);
  const int slices = sizes.key_dim / kSlice;
  for (int slice = 0; slice < slices; ++slice) {
    auto& tiles = memory.tiles[slice % 2];
#pragma unroll
    for (int tensor = 0; tensor < 2; ++tensor) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 packed = PackEight(pieces.x[tensor][i]);
        const uint32_t at = TileOffset(row + 32 * i, piece);
        *reinterpret_cast<uint4*>(tiles[tensor] + at) = packed;
        if (image != nullptr) {
          *reinterpret_cast<uint4*>(image + (2 * slice + tensor) * kTileBytes + at) = packed;
        }
      }
    }
    if (slice + 1 < slices) {
      q += kSlice, k += kSlice;
      pieces.Load(q, k, q_pitch, k_pitch, place.entries);
    }
    __syncthreads();
    const uint32_t q_tile = SharedAddress(tiles[0]), k_tile = SharedAddress(tiles[1]);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      uint32_t left[4];
      LoadLeft(q_tile, kSub * block, step, left);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        if (2 * half + n > block) continue;
        uint32_t right[4];
        LoadRightOfRows(k_tile, kSub * (2 * half + n), step, right);
        Mma<Element>(sums + 8 * n, left, right[0], right[1]);
        Mma<Element>(sums + 8 * n + 4, left, right[2], right[3]);
      }
    }
  }
}

__device__ uint8_t* ImageOf(const HeadParams& p, int chunk, int head) {
  const RuleSizes& sizes = p.chunks.sizes;
  const int group = sizes.product_heads / sizes.image_heads;
  if (head % group != 0) return nullptr;
  return reinterpret_cast<uint8_t*>(
      p.chunks.keys + (static_cast<int64_t>(chunk) * sizes.image_heads + head / group) *
                          (KeyTiles(ChunkForm::kHead) * kChunk * sizes.key_dim));
}

__global__ __launch_bounds__(kThreads, 3) void HeadKernel(HeadParams p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  __shared__ TileMemory memory;
  const RuleSizes& sizes = p.chunks.sizes;
  const int heads = sizes.product_heads, chains = *p.chunks.plan.chains;
  const int items = p.chunks.plan.first_chunk[chains] * heads;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  for (int item = blockIdx.x; item < items; item += gridDim.x) {
    const int chunk = item / heads, head = item % heads;
    const ChunkPlace place = FindChunk(p.chunks.plan, p.offsets, chains, chunk);
    if (warp == 0) LoadGates(p, place, chunk, head, memory.decay);
    float sums[16];
    MultiplyKeys(p, place, head / (heads / sizes.query_heads), head / (heads / sizes.key_heads),
                 memory, ImageOf(p, chunk, head), sums);
    uint8_t* image = reinterpret_cast<uint8_t*>(
        p.chunks.products + (static_cast<int64_t>(chunk) * heads + head) * (kChunk * kChunk));
    const int block = warp % 4, row = kSub * block + lane / 4, pair = 2 * (lane % 4);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int j = 32 * (warp / 4) + 8 * n + pair;
      const float2 decay = *reinterpret_cast<const float2*>(memory.decay + j);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = row + 8 * half;
        const float own = memory.decay[i];
        float x = sums[4 * n + 2 * half] * Exp2(fminf(own - decay.x, 0.0f));
        float y = sums[4 * n + 2 * half + 1] * Exp2(fminf(own - decay.y, 0.0f));
        if (j > i) x = 0;
        if (j + 1 > i) y = 0;
        *reinterpret_cast<uint32_t*>(image + TileOffset(i, j / 8) + 2 * pair) =
            PackPair<Element>(x, y);
      }
    }
    __syncthreads();
  }
}

// A slice of values of a chunk; memory.products hold P, zero above the diagonal.
__device__ void ReadWithin(const HeadParams& p, const ChunkPlace& place, int head, int slice,
                           ValueMemory& memory) {
  const RuleSizes& sizes = p.chunks.sizes;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int value_head = head / (sizes.heads / sizes.value_heads);
  const int decay_head = head / (sizes.heads / sizes.decay_heads);
  for (int i = threadIdx.x; i < kChunk * kSlice / 4; i += kThreads) {
    const int row = i / (kSlice / 4), column = i % (kSlice / 4) * 4;
    const int64_t entry = place.entry + row;
    const int at = slice * kSlice + column;
    float4 v = {0, 0, 0, 0}, g = {0, 0, 0, 0};
    if (row < place.entries) {
      v = *reinterpret_cast<const float4*>(
          p.v + (entry * sizes.value_heads + value_head) * sizes.value_dim + at);
      g = *reinterpret_cast<const float4*>(
          p.log_decay + (entry * sizes.decay_heads + decay_head) * sizes.value_dim + at);
    }
    *reinterpret_cast<float4*>(memory.v + row * kSlicePitch + column) = v;
    *reinterpret_cast<float4*>(memory.local + row * kSlicePitch + column) = {
        Log2Decay(g.x), Log2Decay(g.y), Log2Decay(g.z), Log2Decay(g.w)};
  }
  __syncthreads();
  const int sub = threadIdx.x / kSlice, column = threadIdx.x % kSlice;
  float v[kSub], local[kSub];
  {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kSub; ++i) {
      const int at = (kSub * sub + i) * kSlicePitch + column;
      v[i] = memory.v[at];
      sum += memory.local[at];
      memory.local[at] = local[i] = sum;
    }
    memory.total[sub][column] = sum;
  }
  __syncthreads();
  // Pairs with earlier sub-chunks are multiplied by tensor cores.
  {
    const int block = warp % 4, first = 32 * (warp / 4);
    float sums[16] = {};
    const float* products =
        memory.products + (kSub * block + lane / 4) * kSlicePitch + 2 * (lane % 4);
    for (int j = 0; j < block; ++j) {
      uint32_t left[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 x = *reinterpret_cast<const float2*>(products + i % 2 * 8 * kSlicePitch +
                                                          kSub * j + i / 2 * 8);
        left[i] = PackPair<Element>(x.x, x.y);
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int c = first + 8 * n + lane / 4;
        float between = 0;
        for (int i = j; i < block; ++i) between += memory.total[i][c];
        uint32_t right[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int at = (kSub * j + 8 * i + 2 * (lane % 4)) * kSlicePitch + c;
          const float x = memory.v[at] * Exp2(fminf(between - memory.local[at], 0.0f));
          const float y = memory.v[at + kSlicePitch] *
                          Exp2(fminf(between - memory.local[at + kSlicePitch], 0.0f));
          right[i] = PackPair<Element>(x, y);
        }
        Mma<Element>(sums + 4 * n, left, right[0], right[1]);
      }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      float* to =
          memory.earlier + (kSub * block + lane / 4) * kSlicePitch + first + 8 * n + 2 * (lane % 4);
      *reinterpret_cast<float2*>(to) = {sums[4 * n], sums[4 * n + 1]};
      *reinterpret_cast<float2*>(to + 8 * kSlicePitch) = {sums[4 * n + 2], sums[4 * n + 3]};
    }
  }
  // Pairs within the sub-chunk are summed here, a value a thread.
  float read[kSub];
#pragma unroll
  for (int i = 0; i < kSub; ++i) {
    read[i] = 0;
    const float* products = memory.products + (kSub * sub + i) * kSlicePitch + kSub * sub;
#pragma unroll
    for (int j = 0; j <= i; ++j) read[i] += products[j] * v[j] * Exp2(local[i] - local[j]);
  }
  float before = 0, after = 0;
  for (int i = 0; i < kSubs; ++i) {
    if (i < sub) before += memory.total[i][column];
    if (i > sub) after += memory.total[i][column];
  }
  const float end = local[kSub - 1];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kSub; ++i) {
    const int row = kSub * sub + i;
    if (row >= place.entries) break;
    const int64_t at =
        (static_cast<int64_t>(place.entry + row) * sizes.heads + head) * sizes.value_dim +
        slice * kSlice + column;
    p.out[at] = p.scale * (read[i] + Exp2(local[i]) * memory.earlier[row * kSlicePitch + column]);
    p.chunks.values[at] = v[i] * Exp2(fminf(end - local[i], 0.0f) + after);
    p.chunks.decays[at] = Exp2(before + local[i]);
  }
  __syncthreads();
}

__global__ __launch_bounds__(kThreads, 2) void ValueKernel(HeadParams p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  extern __shared__ __align__(1024) uint8_t shared[];
  ValueMemory& memory = *reinterpret_cast<ValueMemory*>(shared);
  const RuleSizes& sizes = p.chunks.sizes;
  const int heads = sizes.heads, chains = *p.chunks.plan.chains;
  const int items = p.chunks.plan.first_chunk[chains] * heads;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  for (int item = blockIdx.x; item < items; item += gridDim.x) {
    const int chunk = item / heads, head = item % heads;
    const ChunkPlace place = FindChunk(p.chunks.plan, p.offsets, chains, chunk);
    float sums[16];
    MultiplyKeys(p, place, head / (heads / sizes.query_heads), head / (heads / sizes.key_heads),
                 memory.keys, ImageOf(p, chunk, head), sums);
    __syncthreads();
    const int row = kSub * (warp % 4) + lane / 4;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int j = 32 * (warp / 4) + 8 * n + 2 * (lane % 4);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = row + 8 * half;
        *reinterpret_cast<float2*>(memory.products + i * kSlicePitch + j) = {
            j > i ? 0 : sums[4 * n + 2 * half], j + 1 > i ? 0 : sums[4 * n + 2 * half + 1]};
      }
    }
    for (int slice = 0; slice < sizes.value_dim / kSlice; ++slice) {
      ReadWithin(p, place, head, slice, memory);
    }
  }
}

}  // namespace

void PrepareHeadChunks(Device& device, ChunkForm form, const RuleChunks& chunks,
                       const MatrixMemoryArgs& args) {
  const HeadParams params = {chunks,
                             args.q.as<const float>(),
                             args.k.as<const float>(),
                             args.v.as<const float>(),
                             args.log_decay.as<const float>(),
                             args.out.as<float>(),
                             args.scale,
                             args.rule.decay == MatrixRule::Decay::kConstant,
                             args.segments.offsets.as<const int>()};
  const int64_t items = static_cast<int64_t>(chunks.plan.max_chunks) * chunks.sizes.product_heads;
  if (form == ChunkForm::kHead) {
    const int blocks = static_cast<int>(std::min<int64_t>(items, 6 * device.multiprocessors()));
    LaunchOverlapping(device, "chunks of decaying heads", HeadKernel, blocks, kThreads, 0, 1,
                      params);
  } else {
    const int blocks = static_cast<int>(std::min<int64_t>(items, 3 * device.multiprocessors()));
    LaunchOverlapping(device, "chunks of decaying values", ValueKernel, blocks, kThreads,
                      sizeof(ValueMemory), 1, params);
  }
}

}  // namespace mneme::cuda::matrix_memory::chunked
