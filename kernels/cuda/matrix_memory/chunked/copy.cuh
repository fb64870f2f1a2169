// How the blocks that run chains get at their work: which chain it is, and the copies of its
// chunks' images and values to shared memory.
#pragma once

#include "kernels/cuda/common/async_copy.cuh"
#include "kernels/cuda/common/bulk_copy.cuh"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/segments.cuh"
#include "kernels/cuda/matrix_memory/chunked/mma.cuh"
#include "kernels/cuda/matrix_memory/chunked/plan.h"

namespace mneme::cuda::matrix_memory::chunked {

constexpr int kGroupRows = 64;               // of the matrix, of a group of four warps
constexpr int kValuePitch = kGroupRows + 4;  // floats; free of bank conflicts as fragments are read

struct ChainParams {
  DeltaChunkPlan plan;
  DeltaChunkSizes sizes;
  float scale;  // of what is read
  const float* v;
  float* out;
  SegmentArrays segments;
  StateView state;
};

// What a block works on: a segment, a value head and some rows of the matrix.
struct Chain {
  int entry, entries;
  int value_head, value, fresh;
  std::byte* state;  // of the memory
  // Images of the first chunk, of all heads; per row of a chunk's tiles, other heads come first.
  const uint8_t *pairs, *products;
  int pairs_skipped, products_skipped;
  const float* gates;
};

template <int kKeyBlocks, int kStages, int kGroups>
struct ChainMemory {
  struct alignas(1024) Stage {
    uint8_t pairs[kKeyBlocks * 2 * kTileBytes];
    uint8_t products[2 * kTileBytes];
  };
  Stage stages[kStages];
  alignas(16) float gates[kStages][kGateFloats];
  alignas(16) float values[kGroups][kChunk * kValuePitch];
  alignas(8) uint64_t full[kStages];
  Chain chain;
  int item;
};

struct ChunkImages {
  const uint8_t *pairs, *products;
  const float* gates;
  int rows;
};

__device__ inline ChunkImages ImagesOf(const Chain& chain, const DeltaChunkSizes& sizes, int n) {
  const int rows = TileRows(min(kChunk, chain.entries - n * kChunk));
  const int64_t pairs_bytes = sizes.heads * sizes.key_dim * (2 * sizeof(__half));  // of a row
  const int64_t products_bytes = sizes.value_heads * (2 * kTileRowBytes);
  return {chain.pairs + n * (kChunk * pairs_bytes) + rows * chain.pairs_skipped,
          chain.products + n * (kChunk * products_bytes) + rows * chain.products_skipped,
          chain.gates + static_cast<int64_t>(n) * (sizes.value_heads * kGateFloats), rows};
}

// One thread: looks up what the block's item is.
__device__ inline void FindChain(const ChainParams& p, int item, int tiles, int tile_rows,
                                 Chain* chain) {
  const DeltaChunkSizes& sizes = p.sizes;
  const int index = item / (sizes.value_heads * tiles), segment = p.plan.segment[index];
  const int value_head = item / tiles % sizes.value_heads;
  const int head = value_head / (sizes.value_heads / sizes.heads);
  const int64_t row = p.plan.first_row[index];
  chain->entry = p.segments.offsets[segment];
  chain->entries = p.segments.offsets[segment + 1] - chain->entry;
  chain->value = item % tiles * tile_rows;
  chain->value_head = value_head;
  chain->fresh = p.segments.fresh[segment];
  chain->state = p.state.base + p.segments.slots[segment] * p.state.slab_bytes + p.state.offset +
                 p.segments.memories[segment] * p.state.memory_bytes;
  chain->pairs =
      reinterpret_cast<const uint8_t*>(p.plan.keys_queries + row * sizes.heads * 2 * sizes.key_dim);
  chain->pairs_skipped = head * sizes.key_dim * (2 * sizeof(__half));
  chain->products =
      reinterpret_cast<const uint8_t*>(p.plan.products + row * sizes.value_heads * 2 * kChunk);
  chain->products_skipped = value_head * (2 * kTileRowBytes);
  chain->gates =
      p.plan.gates +
      (static_cast<int64_t>(p.plan.first_chunk[index]) * sizes.value_heads + value_head) *
          kGateFloats;
}

// Hopper, one thread: starts the copy of a chunk's images; `full` completes a phase when it is
// done.
template <int kKeyBlocks, typename Memory>
__device__ inline void StartCopy(Memory& memory, int stage, const ChunkImages& images) {
#ifdef MNEME_HOPPER_MMA
  uint64_t* full = &memory.full[stage];
  const int tile = images.rows * kTileRowBytes;
  ArriveAndExpect(full, (2 * kKeyBlocks + 2) * tile + static_cast<int>(sizeof(memory.gates[0])));
  BulkLoad(memory.gates[stage], images.gates, sizeof(memory.gates[0]), full);
  if (images.rows == kChunk) {
    BulkLoad(memory.stages[stage].pairs, images.pairs, sizeof(memory.stages[0].pairs), full);
    BulkLoad(memory.stages[stage].products, images.products, sizeof(memory.stages[0].products),
             full);
    return;
  }
  for (int i = 0; i < 2 * kKeyBlocks; ++i) {
    BulkLoad(memory.stages[stage].pairs + i * kTileBytes, images.pairs + i * tile, tile, full);
  }
  for (int i = 0; i < 2; ++i) {
    BulkLoad(memory.stages[stage].products + i * kTileBytes, images.products + i * tile, tile,
             full);
  }
#endif
}

// The same by all threads, without Hopper's copies; done after AwaitCopies and a barrier.
template <int kKeyBlocks, int kThreads, typename Memory>
__device__ inline void CopyTogether(Memory& memory, const ChunkImages& images) {
  const int pieces = images.rows * (kTileRowBytes / 16);  // of a tile
  for (int i = threadIdx.x; i < (2 * kKeyBlocks + 2) * pieces; i += kThreads) {
    const int tile = i / pieces, piece = i % pieces;
    if (tile < 2 * kKeyBlocks) {
      CopyAsync16(memory.stages[0].pairs + tile * kTileBytes + 16 * piece, images.pairs + 16 * i);
    } else {
      const int t = tile - 2 * kKeyBlocks;
      CopyAsync16(memory.stages[0].products + t * kTileBytes + 16 * piece,
                  images.products + 16 * (t * pieces + piece));
    }
  }
  for (int i = threadIdx.x; i < kGateFloats / 4; i += kThreads) {
    CopyAsync16(memory.gates[0] + 4 * i, images.gates + 4 * i);
  }
}

// One warp: starts the copy of 16 columns of v of a chunk, `from` being its lane's piece of the
// first 8 rows. Rows from `entries` on become zeros.
__device__ inline void StartValues(const float* from, int pitch, int entries, float* to) {
  const int lane = threadIdx.x % kWarp;
  const uint32_t address = SharedAddress(to + lane / 4 * kValuePitch + 4 * (lane % 4));
#pragma unroll
  for (int i = 0; i < kChunk / 8; ++i) {
    const bool inside = 8 * i + lane / 4 < entries;
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address + 32 * i * kValuePitch),
        "l"(from), "r"(inside ? 16 : 0)
        : "memory");
    if (8 * (i + 1) + lane / 4 < entries) from += 8 * pitch;
  }
}

}  // namespace mneme::cuda::matrix_memory::chunked
