// What the chunks of the gated delta rule need that does not depend on the memory, for all of them
// at once: f16 tiles of k and q, and the triangular matrices T and P T of delta_chunk_plan.h.
#include <algorithm>

#include "kernels/cuda/delta_chunk_mma.cuh"
#include "kernels/cuda/delta_chunk_plan.h"
#include "kernels/cuda/device_utils.cuh"

namespace mneme::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPitch = kChunk + 1;  // of the f32 matrices

struct PrepareParams {
  DeltaChunkPlan plan;
  DeltaChunkSizes sizes;
  const float *q, *k, *log_decay, *beta;
  const int* offsets;
};

template <int kKeyBlocks>
struct PrepareMemory {
  // Tiles of k and q; when their products are known, T in f32 and a factor of it.
  static constexpr int kPairBytes = kKeyBlocks * 2 * kTileBytes;
  static constexpr int kInverseBytes = (kChunk * kPitch + 32 * 33) * 4;
  alignas(1024) uint8_t pairs[kPairBytes > kInverseBytes ? kPairBytes : kInverseBytes];
  alignas(1024) uint8_t p_tile[kTileBytes];
  alignas(1024) uint8_t t_tile[kTileBytes];
  float a[kChunk * kPitch];
  float decay[kChunk], beta[kChunk];
  int chain;
};

struct ChunkPlace {
  int entry, entries;  // of the chunk
  int row;             // in the images
};

// Which chain chunk `chunk` belongs to, found by the whole block.
__device__ ChunkPlace FindChunk(const PrepareParams& p, int chains, int chunk, int* found) {
  for (int i = threadIdx.x; i < chains; i += kThreads) {
    if (p.plan.first_chunk[i] <= chunk && chunk < p.plan.first_chunk[i + 1]) *found = i;
  }
  __syncthreads();
  const int chain = *found, segment = p.plan.segment[chain];
  const int skipped = (chunk - p.plan.first_chunk[chain]) * kChunk;
  const int first = p.offsets[segment], last = p.offsets[segment + 1];
  return {first + skipped, min(kChunk, last - first - skipped), p.plan.first_row[chain] + skipped};
}

// f32 rows of k and q to f16 tiles, in shared memory and, if `image` is given, in memory.
template <int kKeyBlocks>
__device__ void LoadKeysAndQueries(const PrepareParams& p, const ChunkPlace& place, int head,
                                   uint8_t* pairs, uint8_t* image) {
  constexpr int kKeyDim = 64 * kKeyBlocks, kPieces = kKeyDim / 8;
  const int rows = TileRows(place.entries);
#pragma unroll 8
  for (int i = threadIdx.x; i < 2 * kChunk * kPieces; i += kThreads) {
    const int is_query = i / (kChunk * kPieces), row = i / kPieces % kChunk, piece = i % kPieces;
    uint4 packed = {0, 0, 0, 0};
    if (row < place.entries) {
      const float4* from = reinterpret_cast<const float4*>(
          (is_query ? p.q : p.k) +
          (static_cast<int64_t>(place.entry + row) * p.sizes.heads + head) * kKeyDim + 8 * piece);
      const float4 low = from[0], high = from[1];
      packed = {PackHalves(low.x, low.y), PackHalves(low.z, low.w), PackHalves(high.x, high.y),
                PackHalves(high.z, high.w)};
    }
    const int pair = piece / 8;
    const uint32_t within = TileOffset(row, piece % 8);
    *reinterpret_cast<uint4*>(pairs + (2 * pair + is_query) * kTileBytes + within) = packed;
    if (image != nullptr && row < rows) {
      *reinterpret_cast<uint4*>(image + (2 * pair + is_query) * rows * kTileRowBytes + within) =
          packed;
    }
  }
}

// The first warp: cumulative log decays and beta of the chunk.
__device__ void LoadGates(const PrepareParams& p, const ChunkPlace& place, int value_head,
                          float* decay, float* beta, float* gates) {
  if (threadIdx.x >= kWarp) return;
  const int lane = threadIdx.x;
  float g[2], b[2];
  for (int i = 0; i < 2; ++i) {
    const int c = 2 * lane + i;
    const int64_t at = static_cast<int64_t>(place.entry + c) * p.sizes.value_heads + value_head;
    g[i] = c < place.entries ? fmaxf(p.log_decay[at], kLeastLogDecay) : 0.0f;
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
    gates[c] = b[i];
    gates[kChunk + c] = b[i] * decayed;
    gates[2 * kChunk + c] = decayed;
    gates[3 * kChunk + c] = inside ? expf(fminf(end - cumulative[i], 0.0f)) : 0.0f;
  }
}

// a = A, lower blocks of 16 x 16 only, by warps 0..3; p_tile = P, likewise, by warps 4..7.
template <int kKeyBlocks>
__device__ void MultiplyByKeys(PrepareMemory<kKeyBlocks>& memory) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int block = warp % 4, is_query = warp / 4;
  float sums[kChunk / 2] = {};
  const uint32_t pairs = SharedAddress(memory.pairs);
#pragma unroll 2
  for (int step = 0; step < 4 * kKeyBlocks; ++step) {
    const uint32_t keys = pairs + step / 4 * 2 * kTileBytes;
    uint32_t left[4];
    LoadLeft(keys + is_query * kTileBytes, 16 * block, step % 4, left);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (n > block) continue;
      uint32_t right[4];
      LoadRightOfRows(keys, 16 * n, step % 4, right);
      Mma(sums + 8 * n, left, right[0], right[1]);
      Mma(sums + 8 * n + 4, left, right[2], right[3]);
    }
  }
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    if (n / 2 > block) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = 16 * block + lane / 4 + 8 * half, j = 8 * n + 2 * (lane % 4);
      float x[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const bool kept = is_query ? j + c <= i : j + c < i;
        x[c] = kept ? sums[4 * n + 2 * half + c] *
                          expf(fminf(memory.decay[i] - memory.decay[j + c], 0.0f))
                    : 0.0f;
      }
      if (is_query) {
        *reinterpret_cast<uint32_t*>(memory.p_tile + TileOffset(i, n) + 4 * (lane % 4)) =
            PackHalves(x[0], x[1]);
      } else {
        memory.a[i * kPitch + j] = memory.beta[i] * x[0];
        memory.a[i * kPitch + j + 1] = memory.beta[i] * x[1];
      }
    }
  }
}

// Rows first.. + n, columns 0.. + n of z = sign x y, all n x n, as wide blocks of a matrix.
template <int n, int kOutputs>
__device__ void MultiplyBlocks(float sign, const float* x, int x_pitch, const float* y, int y_pitch,
                               float* z, int z_pitch, int thread) {
  static_assert(n % kOutputs == 0);
  const int row = thread / (n / kOutputs), column = thread % (n / kOutputs) * kOutputs;
  float sums[kOutputs] = {};
#pragma unroll 8
  for (int l = 0; l < n; ++l) {
    const float left = x[row * x_pitch + l];
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) sums[o] += left * y[l * y_pitch + column + o];
  }
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) z[row * z_pitch + column + o] = sign * sums[o];
}

// t = (I + A)^-1, blocks on and below the diagonal: those on it by substitution, a column a lane;
// then from [X 0; Y Z]^-1 = [X^-1 0; -Z^-1 Y X^-1  Z^-1], first for blocks of 16, then of 32.
__device__ void Invert(const float* a, float* t, float* factor) {
  const int thread = threadIdx.x, warp = thread / kWarp, lane = thread % kWarp;
  if (warp < 4 && lane < 16) {
    const float* block = a + 16 * warp * (kPitch + 1);
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      x[i] = i == lane ? 1.0f : 0.0f;
#pragma unroll
      for (int l = 0; l < i; ++l) x[i] -= block[i * kPitch + l] * x[l];
      t[(16 * warp + i) * kPitch + 16 * warp + lane] = x[i];
    }
  }
  __syncthreads();
  {
    const int first = 32 * (thread / 128);
    const float* low = a + (first + 16) * kPitch + first;
    float* part = factor + thread / 128 * 16 * 17;
    float* corner = t + first * (kPitch + 1);
    MultiplyBlocks<16, 2>(1, low, kPitch, corner, kPitch, part, 17, thread % 128);
    __syncthreads();
    MultiplyBlocks<16, 2>(-1, corner + 16 * (kPitch + 1), kPitch, part, 17, corner + 16 * kPitch,
                          kPitch, thread % 128);
    // The blocks above the diagonal are read below.
    for (int i = thread % 128; i < 256; i += 128) corner[i / 16 * kPitch + 16 + i % 16] = 0;
  }
  __syncthreads();
  MultiplyBlocks<32, 4>(1, a + 32 * kPitch, kPitch, t, kPitch, factor, 33, thread);
  __syncthreads();
  MultiplyBlocks<32, 4>(-1, t + 32 * (kPitch + 1), kPitch, factor, 33, t + 32 * kPitch, kPitch,
                        thread);
  __syncthreads();
}

// P T, of which blocks above the diagonal are zero, to the image.
__device__ void MultiplyTriangles(uint32_t p_tile, uint32_t t_tile, int rows, uint8_t* image) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int block = warp % 4, first = 2 * (warp / 4);
  float sums[16] = {};
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    if (step > block) continue;
    uint32_t left[4];
    LoadLeft(p_tile, 16 * block, step, left);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      uint32_t right[4];
      LoadRightOfColumns(t_tile, step, 16 * (first + n), right);
      Mma(sums + 8 * n, left, right[0], right[1]);
      Mma(sums + 8 * n + 4, left, right[2], right[3]);
    }
  }
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = 16 * block + lane / 4 + 8 * half;
      if (i >= rows) continue;
      *reinterpret_cast<uint32_t*>(image + TileOffset(i, 2 * first + n) + 4 * (lane % 4)) =
          PackHalves(sums[4 * n + 2 * half], sums[4 * n + 2 * half + 1]);
    }
  }
}

template <int kKeyBlocks>
__global__ __launch_bounds__(kThreads, 2) void PrepareKernel(PrepareParams p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  auto& memory = *reinterpret_cast<PrepareMemory<kKeyBlocks>*>(shared);
  const DeltaChunkSizes& sizes = p.sizes;
  const int chains = *p.plan.chains;
  const int items = p.plan.first_chunk[chains] * sizes.value_heads;
  for (int item = blockIdx.x; item < items; item += gridDim.x) {
    const int chunk = item / sizes.value_heads, value_head = item % sizes.value_heads;
    const int group = sizes.value_heads / sizes.heads, head = value_head / group;
    const ChunkPlace place = FindChunk(p, chains, chunk, &memory.chain);
    const int rows = TileRows(place.entries);
    uint8_t* pairs_image = nullptr;
    if (value_head % group == 0) {
      pairs_image = reinterpret_cast<uint8_t*>(
          p.plan.keys_queries +
          (static_cast<int64_t>(place.row) * sizes.heads + rows * head) * 2 * sizes.key_dim);
    }
    LoadKeysAndQueries<kKeyBlocks>(p, place, head, memory.pairs, pairs_image);
    LoadGates(p, place, value_head, memory.decay, memory.beta,
              p.plan.gates + static_cast<int64_t>(item) * kGateFloats);
    __syncthreads();
    MultiplyByKeys(memory);
    __syncthreads();

    float* t = reinterpret_cast<float*>(memory.pairs);
    Invert(memory.a, t, t + kChunk * kPitch);
    uint8_t* image = reinterpret_cast<uint8_t*>(
        p.plan.products +
        (static_cast<int64_t>(place.row) * sizes.value_heads + rows * value_head) * 2 * kChunk);
#pragma unroll
    for (int i = threadIdx.x; i < kChunk * 8; i += kThreads) {
      const int row = i / 8, piece = i % 8;
      float x[8];
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        const int column = 8 * piece + c;
        x[c] = column <= row ? t[row * kPitch + column] : 0.0f;
      }
      const uint4 packed = {PackHalves(x[0], x[1]), PackHalves(x[2], x[3]), PackHalves(x[4], x[5]),
                            PackHalves(x[6], x[7])};
      *reinterpret_cast<uint4*>(memory.t_tile + TileOffset(row, piece)) = packed;
      if (row < rows) *reinterpret_cast<uint4*>(image + TileOffset(row, piece)) = packed;
    }
    __syncthreads();
    MultiplyTriangles(SharedAddress(memory.p_tile), SharedAddress(memory.t_tile), rows,
                      image + rows * kTileRowBytes);
    __syncthreads();
  }
}

template <int kKeyBlocks>
cudaError_t Launch(const PrepareParams& params, int multiprocessors, cudaStream_t stream) {
  const int bytes = sizeof(PrepareMemory<kKeyBlocks>);
  const cudaError_t status = cudaFuncSetAttribute(
      PrepareKernel<kKeyBlocks>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status != cudaSuccess) return status;
  const int64_t items = static_cast<int64_t>(params.plan.max_chunks) * params.sizes.value_heads;
  const int blocks = static_cast<int>(std::min<int64_t>(items, 2 * multiprocessors));
  PrepareKernel<kKeyBlocks><<<blocks, kThreads, bytes, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace

cudaError_t PrepareDeltaChunks(const DeltaChunkPlan& plan, const GatedDeltaRuleArgs& args,
                               const DeltaChunkSizes& sizes, int multiprocessors,
                               cudaStream_t stream) {
  const PrepareParams params = {plan,
                                sizes,
                                args.q.as<const float>(),
                                args.k.as<const float>(),
                                args.log_decay.as<const float>(),
                                args.beta.as<const float>(),
                                args.segments.offsets.as<const int>()};
  switch (sizes.key_dim) {
    case 64:
      return Launch<1>(params, multiprocessors, stream);
    case 128:
      return Launch<2>(params, multiprocessors, stream);
    case 256:
      return Launch<4>(params, multiprocessors, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace mneme::cuda
