// Tiles of attention on tensor cores, keys and values of bf16: which queries a tile has, and which
// blocks of positions they see.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/problem.cuh"
#include "kernels/cuda/common/attention_tiles.cuh"
#include "kernels/cuda/common/mma.cuh"

namespace mneme::cuda::attention {

static_assert(kTileKeys == kContextBlock);

// Where a row of the step is: its session, the position of its first token, and that token.
struct RowPlace {
  int slot;
  int64_t begin;
  int token;
  RowPlace() = default;
  __device__ RowPlace(const Problem& p, int row)
      : slot(p.slots[row]), begin(p.positions[row]), token(p.row_offsets[row]) {}
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

  __device__ Tile(const Problem& p, const RowPlace& row, int first_token, int count, int kv_head,
                  int head, int head_count)
      : slot(row.slot),
        kv_head(kv_head),
        first_head(head),
        heads(head_count),
        token(first_token),
        tokens(count),
        row_token(row.token),
        row_begin(row.begin),
        first_seen(p.First(PositionOf(first_token))),
        last_position(PositionOf(first_token + count - 1)),
        first_block(first_seen / kContextBlock),
        first_place(static_cast<int>(first_block % p.keys[0].blocks)),
        prefix_blocks(p.prefix_blocks()),
        blocks(prefix_blocks +
               p.kinds * static_cast<int>(last_position / kContextBlock - first_block + 1)) {}

  __device__ int64_t PositionOf(int of_token) const { return row_begin + of_token - row_token; }
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

// Where a head of a token has its sums, or with splits > 1 those of one of them.
__device__ inline float* OutOf(const Problem& p, int token, int head, int split) {
  const int64_t at = int64_t{token} * p.heads + head;
  return p.splits == 1 ? p.out + at * p.value_dim : p.sums + (at * p.splits + split) * p.value_dim;
}

}  // namespace mneme::cuda::attention
