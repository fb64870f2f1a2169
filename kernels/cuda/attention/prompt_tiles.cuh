// A step of prompts cut into tiles of queries, and how those warps that do nothing else bring the
// keys and values that a tile sees to shared memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/tiles.cuh"
#include "kernels/cuda/common/bulk_copy.cuh"

namespace mneme::cuda::attention {

constexpr int kFetchers = 128;
constexpr int kStepBlocks = 2;  // blocks of positions that are multiplied at once
constexpr int kStepKeys = kStepBlocks * kContextBlock;
constexpr int kStepGroupBytes = kStepKeys * 128;  // 64 columns of them

// The step's own keys and values as rows of a context, or null: they are where the table says.
struct Own {
  const __nv_bfloat16 *k[2], *v[2];
};

struct Tiling {
  int query_tiles, tile_queries;  // of the heads that share keys and values
  int tile_tokens, tiles;
  int all;  // tiles of tokens times those of heads
};

// The tiles of a block of threads: every gridDim.x-th, there and back, so that none has the longest
// of every round.
__device__ inline int TileOf(int round) {
  const int at = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
  return round * blocks + (round % 2 == 0 ? at : blocks - 1 - at);
}

// The tokens and heads of a tile, if there is one.
struct TileTokens {
  int row = 0, token = 0, tokens = 0, kv_head = 0, first_head = 0, heads = 0;
  bool exists = false;

  __device__ TileTokens(const Problem& p, const Tiling& tiling, int index) {
    if (index >= tiling.all) return;
    const int head_tiles = p.kv_heads * tiling.query_tiles;
    const int head_tile = index % head_tiles;
    const int query_tile = head_tile % tiling.query_tiles;
    kv_head = head_tile / tiling.query_tiles;
    // Tiles of a prompt's end, which see most, come first.
    exists = FindTokens(p.row_offsets, p.rows, tiling.tiles - 1 - index / head_tiles,
                        tiling.tile_tokens, &row, &token, &tokens) &&
             p.slots[row] >= 0;
    const int group = p.heads / p.kv_heads;
    first_head = kv_head * group + query_tile * tiling.tile_queries;
    heads = min(tiling.tile_queries, group - query_tile * tiling.tile_queries);
  }
};

// The n-th block that a tile sees, those of the prefix first, then those of positions. Its rows are
// counted from the prefix' first one, or from the first row of the tile's first block.
struct Block {
  bool fixed;  // of the prefix
  int kind, begin;
  __device__ Block(const Problem& p, int n) : fixed(n < p.prefix_blocks()) {
    const int own = n - p.prefix_blocks();
    kind = fixed || p.kinds == 1 ? 0 : own & 1;
    begin = (fixed ? n : p.kinds == 1 ? own : own >> 1) * kContextBlock;
  }
};

// The rows so counted that a tile sees, [from, to). From `own` on they are the step's, `token`
// being the first of these.
struct Rows {
  int from, to, own, token, kv_head;
  __device__ explicit Rows(const Tile& tile)
      : from(static_cast<int>(tile.first_seen - tile.first_block * kContextBlock)),
        to(static_cast<int>(tile.last_position + 1 - tile.first_block * kContextBlock)),
        own(static_cast<int>(tile.row_begin - tile.first_block * kContextBlock)),
        token(tile.row_token),
        kv_head(tile.kv_head) {}
};

// A field of all positions, and other places of some of its rows.
struct Source {
  const Field& field;
  const __nv_bfloat16* own;  // of the step, or null
  const float* prefix;
  int dim;
};

// Begins to copy the block at `offset` to `to`; rows that nobody of the tile sees become zeros.
// Those of a prefix are there at once.
template <int kDim>
__device__ inline void FetchBlock(const Problem& p, const Rows& rows, const Block& b,
                                  int64_t offset, const Source& source, uint32_t to) {
  constexpr int kPieces = kDim / 8, kRowsAtOnce = kFetchers / kPieces;
  static_assert(kRowsAtOnce % 8 == 0 && kContextBlock % kRowsAtOnce == 0);
  const Field& field = source.field;
  const int piece = threadIdx.x % kPieces, row = threadIdx.x / kPieces;
  const bool inside = piece * 8 < source.dim;
  const int column = rows.kv_head * source.dim + (inside ? piece * 8 : 0);
  const int64_t pitch = int64_t{p.kv_heads} * source.dim;
  const uint32_t place = to + Place(row, piece, kStepGroupBytes);
  if (b.fixed) {
#pragma unroll 1
    for (int i = 0; i < kContextBlock / kRowsAtOnce; ++i) {
      const int at = b.begin + row + i * kRowsAtOnce;
      uint4 eight = {};
      if (inside && at < p.prefix) {
        const float* const from = source.prefix + at * pitch + column;
        eight = RoundEight<__nv_bfloat16>(*reinterpret_cast<const float4*>(from),
                                          *reinterpret_cast<const float4*>(from + 4));
      }
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(place + i * kRowsAtOnce * 128),
                   "r"(eight.x), "r"(eight.y), "r"(eight.z), "r"(eight.w)
                   : "memory");
    }
    return;
  }
  const std::byte* at = field.base + offset + field.offset + column * 2 + row * field.row_bytes;
  const int64_t stride = kRowsAtOnce * field.row_bytes;
  const int end = b.begin + kContextBlock;
  if (b.begin >= rows.from && end <= rows.to && (source.own == nullptr || end <= rows.own)) {
#pragma unroll
    for (int i = 0; i < kContextBlock / kRowsAtOnce; ++i) {
      CopyAsync16(place + i * kRowsAtOnce * 128, at, inside);
      at += stride;
    }
    return;
  }
#pragma unroll 1
  for (int i = 0; i < kContextBlock / kRowsAtOnce; ++i) {
    const int j = b.begin + row + i * kRowsAtOnce;
    const bool seen = inside && j >= rows.from && j < rows.to;
    const void* from = seen ? at : field.base;
    if (source.own != nullptr && seen && j >= rows.own) {
      from = source.own + (rows.token + j - rows.own) * pitch + column;
    }
    CopyAsync16(place + i * kRowsAtOnce * 128, from, seen);
    at += stride;
  }
}

// A ring of keys or of values in shared memory. Barriers of a stage: its copies are done; it was
// read.
template <int kStages>
struct Ring {
  uint64_t full[kStages], empty[kStages];

  __device__ void Init(int readers) {
    for (int i = 0; i < kStages; ++i) {
      InitBarrier(&full[i], kFetchers);
      InitBarrier(&empty[i], readers);
    }
  }
};

// Fetches what a tile sees, a step of blocks after the other, into the rings that begin at `keys`
// and `values`; values come one step later than keys, as they are read. By all fetchers.
template <int kDim, int kStages>
struct Fetcher {
  Ring<kStages>&key_ring, &value_ring;
  uint32_t keys, values, stage_bytes;
  RingPlace<kStages> key_place, value_place;

  __device__ void FetchTile(const Problem& p, const Own& own, const Tile& tile) {
    const Rows rows(tile);
    const auto places = static_cast<int>(p.keys[0].blocks);
    const int64_t* const table = p.keys[0].offsets + int64_t{tile.slot} * places;
    const int steps = (tile.blocks + kStepBlocks - 1) / kStepBlocks;
    int64_t now[kStepBlocks] = {}, before[kStepBlocks];
#pragma unroll 1
    for (int step = 0; step <= steps; ++step) {
#pragma unroll
      for (int i = 0; i < kStepBlocks; ++i) before[i] = now[i];
      if (step < steps) {
#pragma unroll
        for (int i = 0; i < kStepBlocks; ++i) {
          const Block b(p, min(step * kStepBlocks + i, tile.blocks - 1));
          if (b.fixed) continue;
          int at = tile.first_place + b.begin / kContextBlock;
          while (at >= places) at -= places;
          now[i] = table[at];
        }
        Fetch(p, rows, step, now, keys, key_ring, key_place, [&](int kind) {
          return Source{p.keys[kind], own.k[kind], p.prefix_keys, p.key_dim};
        });
      }
      if (step > 0) {
        Fetch(p, rows, step - 1, before, values, value_ring, value_place, [&](int kind) {
          return Source{p.values[kind], own.v[kind], p.prefix_values, p.value_dim};
        });
      }
    }
  }

 private:
  template <typename SourceOf>
  __device__ void Fetch(const Problem& p, const Rows& rows, int step,
                        const int64_t (&offsets)[kStepBlocks], uint32_t stages, Ring<kStages>& ring,
                        RingPlace<kStages>& place, const SourceOf& source_of) {
    BulkWait(&ring.empty[place.at], place.phase ^ 1);
#pragma unroll
    for (int i = 0; i < kStepBlocks; ++i) {
      const Block b(p, step * kStepBlocks + i);
      FetchBlock<kDim>(p, rows, b, offsets[i], source_of(b.kind),
                       stages + place.at * stage_bytes + i * kContextBlock * 128);
    }
    if (Block(p, step * kStepBlocks).fixed) {  // which no asynchronous copy brings
      AwaitCopies();
      Arrive(&ring.full[place.at]);
    } else {
      ArriveAfterCopies(&ring.full[place.at]);
    }
    place.Next();
  }
};

}  // namespace mneme::cuda::attention
