// Tiles of attention on tensor cores, keys and values of bf16: which queries a tile has, which
// blocks of positions they see, and how these come to shared memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/problem.cuh"
#include "kernels/cuda/common/attention_tiles.cuh"
#include "kernels/cuda/common/mma.cuh"

namespace mneme::cuda::attention {

static_assert(kTileKeys == kContextBlock);

// The step's own keys and values as rows of a context, or null: they are where the table says.
struct Own {
  const __nv_bfloat16 *k[2], *v[2];
};

// Queries of up to `tokens` tokens of one row and `heads` of the heads that share keys and values.
struct Tile {
  int slot, kv_head, first_head, heads;
  int token, tokens;  // the first
  int row_token;      // the row's first
  int64_t row_begin;  // its position
  int64_t first_seen, last_position;
  int64_t first_block;
  int first_place;            // of that block in the table, which all fields share
  int prefix_blocks, blocks;  // of positions, those of the prefix first

  __device__ Tile(const Problem& p, int row, int first_token, int count, int kv_head, int head,
                  int head_count)
      : slot(p.slots[row]),
        kv_head(kv_head),
        first_head(head),
        heads(head_count),
        token(first_token),
        tokens(count),
        row_token(p.row_offsets[row]),
        row_begin(p.positions[row]),
        first_seen(p.First(PositionOf(first_token))),
        last_position(PositionOf(first_token + count - 1)),
        first_block(first_seen / kContextBlock),
        first_place(static_cast<int>(first_block % p.keys[0].blocks)),
        prefix_blocks(p.prefix_blocks()),
        blocks(prefix_blocks +
               p.kinds * static_cast<int>(last_position / kContextBlock - first_block + 1)) {}

  __device__ int64_t PositionOf(int of_token) const { return row_begin + of_token - row_token; }
};

// A block of positions: of the prefix, or of one kind of the session's.
struct KeyBlock {
  bool fixed;
  int kind;
  int64_t begin;          // first position
  int64_t offset_of = 0;  // where its offset is in the table

  __device__ KeyBlock(const Problem& p, const Tile& tile, int n) : fixed(n < tile.prefix_blocks) {
    const int own = n - tile.prefix_blocks;
    kind = fixed || p.kinds == 1 ? 0 : own & 1;
    const int ahead = fixed ? n : p.kinds == 1 ? own : own >> 1;
    begin = (fixed ? ahead : tile.first_block + ahead) * kContextBlock;
    if (fixed) return;
    const auto places = static_cast<int>(p.keys[0].blocks);
    int place = tile.first_place + ahead;
    while (place >= places) place -= places;
    offset_of = int64_t{tile.slot} * places + place;
  }
  __device__ std::byte* Rows(const Field& field) const {
    return const_cast<std::byte*>(field.base) + field.offsets[offset_of] + field.offset;
  }
};

// One of the queries of a thread: what it sees, nothing if there is no such query.
struct Query {
  bool exists;
  int token, head;
  int64_t from, to;

  __device__ Query(const Problem& p, const Tile& tile, int index)
      : exists(index < tile.tokens * tile.heads),
        token(tile.token + index / tile.heads),
        head(tile.first_head + index % tile.heads),
        from(exists ? p.First(tile.PositionOf(token)) : 0),
        to(exists ? tile.PositionOf(token) + 1 : 0) {}

  __device__ float2 Load(const Problem& p, int column) const {
    if (!exists || column >= p.key_dim) return {};
    return *reinterpret_cast<const float2*>(p.q + (int64_t{token} * p.heads + head) * p.key_dim +
                                            column);
  }
  // The places [from, to) of a block that it sees.
  __device__ int2 Seen(const Problem& p, const KeyBlock& b) const {
    const int64_t low = b.fixed ? 0 : from, high = !b.fixed ? to : exists ? p.prefix : 0;
    return {static_cast<int>(max(low - b.begin, int64_t{0})),
            static_cast<int>(max(min(high - b.begin, int64_t{kContextBlock}), int64_t{0}))};
  }
};

// Queries of a thread in a tile of 16 rows, as MultiplyAdd wants them.
template <int kDim>
__device__ inline void LoadQueries(const Problem& p, const Query (&queries)[2],
                                   uint32_t (&q)[kDim / 16][4]) {
#pragma unroll
  for (int i = 0; i < kDim / 16; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int column = i * 16 + 2 * (threadIdx.x % 4) + j / 2 * 8;
      const float2 pair = queries[j % 2].Load(p, column);
      q[i][j] = RoundPair(pair.x, pair.y, __nv_bfloat16());
    }
  }
}

// Begins to copy a block to `to`; rows that no query of the tile sees become zeros. kSingle: the
// tile's token is the only one of its row, whose own keys or values, f32, are rounded on the way
// and stored where the table says (if `stores`).
template <int kDim, int kThreads, bool kSingle>
__device__ inline void FetchField(const Problem& p, const Tile& tile, const KeyBlock& b,
                                  const Field& field, const __nv_bfloat16* copy, const float* own,
                                  const float* prefix, int dim, bool stores, unsigned char* to) {
  constexpr int kPieces = kDim / 8, kRowsAtOnce = kThreads / kPieces;
  static_assert(kRowsAtOnce % 8 == 0 && kContextBlock % kRowsAtOnce == 0);
  const int piece = threadIdx.x % kPieces, row = threadIdx.x / kPieces;
  const bool inside = piece * 8 < dim;
  unsigned char* place = to + Place(row, piece);
  const auto rounded = [](const float* from) {
    return RoundEight<__nv_bfloat16>(*reinterpret_cast<const float4*>(from),
                                     *reinterpret_cast<const float4*>(from + 4));
  };
  if (b.fixed) {
    for (int j = row; j < kContextBlock; j += kRowsAtOnce, place += kRowsAtOnce * 128) {
      uint4 eight = {};
      if (inside && b.begin + j < p.prefix) {
        eight = rounded(prefix + ((b.begin + j) * p.kv_heads + tile.kv_head) * dim + piece * 8);
      }
      *reinterpret_cast<uint4*>(place) = eight;
    }
    return;
  }
  const int column = tile.kv_head * dim + (inside ? piece * 8 : 0);
  std::byte* const rows = b.Rows(field) + column * 2;
  const int from = static_cast<int>(max(tile.first_seen - b.begin, int64_t{0}));
  const int end = static_cast<int>(min(tile.last_position + 1 - b.begin, int64_t{kContextBlock}));
#pragma unroll
  for (int i = 0; i < kContextBlock / kRowsAtOnce; ++i) {
    const int j = row + i * kRowsAtOnce;
    const bool seen = inside && j >= from && j < end;
    std::byte* at = rows + (seen ? j : 0) * field.row_bytes;
    const int64_t ahead = b.begin + j - tile.row_begin;  // in the step, if not negative
    if constexpr (kSingle) {
      if (seen && ahead == 0) {
        const uint4 eight = rounded(own + int64_t{tile.token} * p.kv_heads * dim + column);
        *reinterpret_cast<uint4*>(place + i * kRowsAtOnce * 128) = eight;
        if (stores) *reinterpret_cast<uint4*>(at) = eight;
        continue;
      }
    } else if (copy != nullptr && seen && ahead >= 0) {
      at = reinterpret_cast<std::byte*>(
          const_cast<__nv_bfloat16*>(copy + (tile.row_token + ahead) * p.kv_heads * dim + column));
    }
    CopyAsync16(SharedAddress(place + i * kRowsAtOnce * 128), at, seen);
  }
}

// Keys to `keys`, values to `values`.
template <int kDim, int kThreads, bool kSingle>
__device__ inline void Fetch(const Problem& p, const Own& own, const Tile& tile, int n, bool stores,
                             unsigned char* keys, unsigned char* values) {
  const KeyBlock b(p, tile, n);
  FetchField<kDim, kThreads, kSingle>(p, tile, b, p.keys[b.kind], own.k[b.kind], p.k[b.kind],
                                      p.prefix_keys, p.key_dim, stores, keys);
  FetchField<kDim, kThreads, kSingle>(p, tile, b, p.values[b.kind], own.v[b.kind], p.v[b.kind],
                                      p.prefix_values, p.value_dim, stores, values);
}

// Where a head of a token has its sums, or with splits > 1 those of one of them.
__device__ inline float* OutOf(const Problem& p, int token, int head, int split) {
  const int64_t at = int64_t{token} * p.heads + head;
  return p.splits == 1 ? p.out + at * p.value_dim : p.sums + (at * p.splits + split) * p.value_dim;
}

}  // namespace mneme::cuda::attention
