// Attention of a step of single tokens on tensor cores (flash-decoding): a block of threads takes
// one token and up to 16 of the heads that share keys and values. Its warps divide each block of
// positions, which stream through shared memory; where there are few tokens, several blocks of
// threads share those. The token's own keys and values are stored on the way.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/attention/tiles.cuh"
#include "kernels/cuda/common/overlap.cuh"

namespace mneme::cuda::attention {
namespace {

constexpr int kQueries = 16;  // rows of a product
constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kWarpKeys = kContextBlock / kWarps;
constexpr int kStages = 2;
// Blocks of threads of a multiprocessor that are wanted: of few, those that run at once, else so
// many that the last ones do not matter.
constexpr int kAtOnce = 3, kWanted = 16;

template <int kDim>
struct Shape {
  static constexpr int kFieldBytes = kDim / 64 * kGroupBytes;
  static constexpr int kStageBytes = 2 * kFieldBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024;  // to align them in
  // The sums that the warps have found lie where the stages were.
  static_assert(kWarps * kQueries * (kDim + 2) * 4 <= kStages * kStageBytes);
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

// The places [from, to) of a block that a query sees.
__device__ inline int2 SeenBy(const Problem& p, const Query& query, const KeyBlock& b) {
  const int64_t low = b.fixed ? 0 : query.from;
  const int64_t high = !b.fixed ? query.to : query.exists ? p.prefix : 0;
  return {static_cast<int>(max(low - b.begin, int64_t{0})),
          static_cast<int>(max(min(high - b.begin, int64_t{kContextBlock}), int64_t{0}))};
}

// Begins to copy a block to `to`; rows that the token does not see become zeros. Its own keys or
// values, f32, are rounded on the way and stored where the table says (if `stores`).
template <int kDim>
__device__ inline void FetchField(const Problem& p, const Tile& tile, const KeyBlock& b,
                                  const Field& field, const float* own, const float* prefix,
                                  int dim, bool stores, unsigned char* to) {
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
    std::byte* const at = rows + (seen ? j : 0) * field.row_bytes;
    if (seen && b.begin + j == tile.row_begin) {
      const uint4 eight = rounded(own + int64_t{tile.token} * p.kv_heads * dim + column);
      *reinterpret_cast<uint4*>(place + i * kRowsAtOnce * 128) = eight;
      if (stores) *reinterpret_cast<uint4*>(at) = eight;
      continue;
    }
    CopyAsync16(SharedAddress(place + i * kRowsAtOnce * 128), at, seen);
  }
}

// Keys to `keys`, values to `values`.
template <int kDim>
__device__ inline void Fetch(const Problem& p, const Tile& tile, int n, bool stores,
                             unsigned char* keys, unsigned char* values) {
  const KeyBlock b(p, tile, n);
  FetchField<kDim>(p, tile, b, p.keys[b.kind], p.k[b.kind], p.prefix_keys, p.key_dim, stores, keys);
  FetchField<kDim>(p, tile, b, p.values[b.kind], p.v[b.kind], p.prefix_values, p.value_dim, stores,
                   values);
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, kDim == 64 ? 5 : 3)
    SingleTokens(const __grid_constant__ Problem p, int query_tiles, int tile_queries) {
  using S = Shape<kDim>;
  extern __shared__ unsigned char unaligned[];
  unsigned char* const shared = unaligned + (1024 - SharedAddress(unaligned) % 1024) % 1024;
  LetNextKernelStart();
  WaitForPreviousKernel();

  const int split = blockIdx.x % p.splits;
  const int head_tile = blockIdx.x / p.splits % (p.kv_heads * query_tiles);
  const int kv_head = head_tile / query_tiles, query_tile = head_tile % query_tiles;
  const int token = blockIdx.x / p.splits / (p.kv_heads * query_tiles);
  // Mostly, every row has a token: what is the token's row then is on its way at once.
  const int likely = min(token, p.rows - 1);
  RowPlace row(p, likely);
  if (row.token != token || p.row_offsets[likely + 1] <= token) row = RowPlace(p, RowOf(p, token));
  if (row.slot < 0) return;
  const int group = p.heads / p.kv_heads;
  const Tile tile(p, row, token, 1, kv_head, kv_head * group + query_tile * tile_queries,
                  min(tile_queries, group - query_tile * tile_queries));
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const auto first_of = [&](int n) {
    return static_cast<int>(int64_t{n} * tile.blocks / p.splits);
  };
  const int begin = first_of(split), end = first_of(split + 1);
  const auto stage = [&](int n) { return shared + (n - begin) % kStages * S::kStageBytes; };
  const auto fetch = [&](int n) {
    if (n < end) {
      Fetch<kDim>(p, tile, n, query_tile == 0, stage(n), stage(n) + S::kFieldBytes);
    }
    CommitCopies();
  };
  fetch(begin);

  const Query queries[2] = {Query(p, tile, lane / 4), Query(p, tile, lane / 4 + 8)};
  uint32_t q[kDim / 16][4];
  LoadQueries<kDim>(p, queries, q);
  Sums<kDim> sums;
  const float scale = p.scale * kLog2E;
  const int first_key = warp * kWarpKeys;
  for (int n = begin; n < end; ++n) {
    fetch(n + 1);
    WaitCopies<1>();
    __syncthreads();
    const uint32_t keys = SharedAddress(stage(n)), values = keys + S::kFieldBytes;
    float scores[kWarpKeys / 8][4] = {};
#pragma unroll
    for (int t = 0; t < kWarpKeys / 8; ++t) {
#pragma unroll
      for (int i = 0; i < kDim / 32; ++i) {
        uint32_t m[4];
        LoadMatrices(m, keys + Place(first_key + t * 8 + lane % 8, i * 4 + lane / 8));
        MultiplyAdd(scores[t], q[2 * i], m[0], m[1], __nv_bfloat16());
        MultiplyAdd(scores[t], q[2 * i + 1], m[2], m[3], __nv_bfloat16());
      }
    }
    const KeyBlock b(p, tile, n);
    const int2 seen[2] = {SeenBy(p, queries[0], b), SeenBy(p, queries[1], b)};
    float factors[2];
    sums.template Weigh<kWarpKeys>(seen, first_key, scale, scores, factors);
    sums.Scale(factors);
    uint32_t weights[4];
    RoundWeights(scores, 0, weights);
#pragma unroll
    for (int t = 0; t < kDim / 8; t += 2) {
      uint32_t m[4];
      LoadTransposedMatrices(m, values + Place(first_key + lane % 16, t + lane / 16));
      MultiplyAdd(sums.out[t], weights, m[0], m[1], __nv_bfloat16());
      MultiplyAdd(sums.out[t + 1], weights, m[2], m[3], __nv_bfloat16());
    }
    __syncthreads();  // the stage has been read
  }
  sums.Finish();

  AwaitCopies();
  float* const found = reinterpret_cast<float*>(shared);  // [kWarps, kQueries, kDim]
  float* const found_most = found + kWarps * kQueries * kDim;
  float* const found_total = found_most + kWarps * kQueries;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int query = warp * kQueries + lane / 4 + 8 * i;
    if (!queries[i].exists) continue;
#pragma unroll
    for (int t = 0; t < kDim / 8; ++t) {
      *reinterpret_cast<float2*>(found + query * kDim + t * 8 + 2 * (lane % 4)) = {
          sums.out[t][2 * i], sums.out[t][2 * i + 1]};
    }
    if (lane % 4 == 0) {
      found_most[query] = sums.largest[i];
      found_total[query] = sums.total[i];
    }
  }
  __syncthreads();
  const int pairs = p.value_dim / 2;
  for (int i = threadIdx.x; i < tile.heads * pairs; i += kThreads) {
    const int query = i / pairs, column = i % pairs * 2;
    float most = -INFINITY;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) most = fmaxf(most, found_most[w * kQueries + query]);
    const float base = most == -INFINITY ? 0.0f : most;
    float2 sum = {};
    float total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const int at = w * kQueries + query;
      const float factor = exp2f(found_most[at] - base);
      const float2 pair = *reinterpret_cast<const float2*>(found + at * kDim + column);
      sum = {fmaf(factor, pair.x, sum.x), fmaf(factor, pair.y, sum.y)};
      total = fmaf(factor, found_total[at], total);
    }
    const int head = tile.first_head + query;
    const float by = p.splits == 1 ? 1.0f / total : 1.0f;
    const int64_t of_head = int64_t{token} * p.heads + head;
    const ReadOutput to = p.splits == 1 ? p.output() : ReadOutput{p.sums, false};
    to.SaveTwo((p.splits == 1 ? of_head : of_head * p.splits + split) * p.value_dim + column,
               {by * sum.x, by * sum.y});
    if (p.splits > 1 && column == 0) {
      const int64_t part = (int64_t{token} * p.heads + head) * p.splits + split;
      p.largest[part] = most / kLog2E;
      p.total[part] = total;
    }
  }
}

template <int kDim>
void Launch(Device& device, Problem p, int64_t tokens, int64_t most_blocks) {
  const int group = p.heads / p.kv_heads;
  const int tile_queries = std::min(group, kQueries);
  const int query_tiles = (group + tile_queries - 1) / tile_queries;
  const int64_t blocks = tokens * p.kv_heads * query_tiles;
  const bool few = 4 * blocks <= int64_t{kAtOnce} * device.multiprocessors();
  const int64_t wanted = int64_t{few ? kAtOnce : kWanted} * device.multiprocessors();
  // Blocks of threads that come after others had better have two blocks of positions to overlap.
  const int64_t most = std::clamp<int64_t>(few ? most_blocks : most_blocks / 2, 1, kMostSplits);
  p.splits = static_cast<int>(std::clamp<int64_t>(wanted / blocks, 1, most));
  AllocateParts(device, p, tokens);
  LaunchOverlapping(device, "SingleTokens", SingleTokens<kDim>, static_cast<int>(blocks * p.splits),
                    kThreads, Shape<kDim>::kSharedBytes, 1, p, query_tiles, tile_queries);
  if (p.splits > 1) CombineParts(device, p, tokens);
}

}  // namespace

void AttendSingleTokens(Device& device, const Problem& p, int64_t tokens, int64_t most_blocks) {
  const bool wide = std::max(p.key_dim, p.value_dim) > 64;
  (wide ? Launch<128> : Launch<64>)(device, p, tokens, most_blocks);
}

}  // namespace mneme::cuda::attention
