// Attention on tensor cores, keys and values of bf16 (flash attention, arXiv:2307.08691): a block
// of threads takes a tile of queries, pairs of a token and one of the heads that share keys and
// values, and goes over the blocks of positions that they see, which stream through shared memory
// while those before them are multiplied.
//
// A prompt's tile has 128 queries, 16 a warp. Of a step of single tokens it has those of one token,
// 16 or fewer, and the warps divide the positions; where there are few tokens, several blocks of
// threads share those, too.
//
// The step's own keys and values are stored first where that hides no position that one of its
// tokens still sees, and are read from a copy of their own where a ring would lose them.
#include <algorithm>
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/attention/problem.cuh"
#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/common/overlap.cuh"

namespace mneme::cuda::attention {
namespace {

constexpr int kStages = 2;
constexpr int kTile = 16;        // rows of a product
constexpr int kMostSplits = 64;  // that share a token's positions
constexpr int kMostDim = 128;
constexpr int kBlocksPerMultiprocessor = 16;  // wanted of a step of single tokens
constexpr float kLog2E = 1.4426950408889634f;

// The step's own keys and values as rows of a context, or null: all are in the table.
struct Own {
  const __nv_bfloat16 *k[2], *v[2];
};

template <int kDim, bool kPrompt>
struct Shape {
  static constexpr int kWarps = kPrompt ? 8 : 4;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kQueries = kPrompt ? kWarps * kTile : kTile;
  static constexpr int kWarpKeys = kPrompt ? kContextBlock : kContextBlock / kWarps;
  static constexpr int kFieldBytes = kContextBlock * kDim * 2;
  static constexpr int kStageBytes = 2 * kFieldBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes;
  // What the warps of a single token's tile have found.
  static constexpr int kFoundBytes = kWarps * kTile * (kDim + 2) * 4;
  static_assert(kPrompt || kFoundBytes <= kSharedBytes);
};

// Where 16-byte piece `piece` of row `row` lies: eight rows at one piece meet no bank twice.
template <int kDim>
__device__ inline uint32_t Place(int row, int piece) {
  return row * (kDim * 2) + (piece ^ (row % 8)) * 16;
}

// What a tile has: tokens [token, token + tokens) of a row.
struct Tokens {
  int row, token, tokens;
};

// Tile `index` of the step, each of up to `most` tokens of one row. By a whole warp.
__device__ inline bool FindTokens(const Problem& p, int index, int most, Tokens* found) {
  const int lane = threadIdx.x % kWarp;
  int before = 0;
  for (int base = 0; base < p.rows; base += kWarp) {
    const int row = base + lane;
    const int begin = row < p.rows ? p.row_offsets[row] : 0;
    const int count = row < p.rows ? p.row_offsets[row + 1] - begin : 0;
    const int tiles = (count + most - 1) / most;
    int sum = tiles;
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const int other = __shfl_up_sync(kAllLanes, sum, offset);
      if (lane >= offset) sum += other;
    }
    const unsigned beyond = __ballot_sync(kAllLanes, before + sum > index);
    if (beyond != 0) {
      const int at = __ffs(static_cast<int>(beyond)) - 1;
      const int first = __shfl_sync(kAllLanes, before + sum - tiles, at);
      const int skipped = (index - first) * most;
      found->row = base + at;
      found->token = __shfl_sync(kAllLanes, begin, at) + skipped;
      found->tokens = min(most, __shfl_sync(kAllLanes, count, at) - skipped);
      return true;
    }
    before += __shfl_sync(kAllLanes, sum, kWarp - 1);
  }
  return false;
}

// Four 8 x 8 matrices of 16-bit numbers, each transposed.
__device__ inline void LoadTransposed(uint32_t (&m)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(shared));
}

__device__ inline float FourLanes(float x, float (*combine)(float, float)) {
  x = combine(x, __shfl_xor_sync(kAllLanes, x, 1));
  return combine(x, __shfl_xor_sync(kAllLanes, x, 2));
}
__device__ inline float Larger(float a, float b) { return fmaxf(a, b); }
__device__ inline float Sum(float a, float b) { return a + b; }

// A block of positions: of the prefix, or of one kind of the session's.
struct KeyBlock {
  bool fixed;
  int kind;
  int64_t block, begin;  // first position
};

template <int kDim, bool kPrompt>
__global__ void __launch_bounds__(Shape<kDim, kPrompt>::kThreads, kPrompt ? 1 : 3)
    Attend(const __grid_constant__ Problem p, const Own own, int query_tiles, int tile_queries,
           int tile_tokens, int tiles) {
  using S = Shape<kDim, kPrompt>;
  extern __shared__ __align__(128) unsigned char shared[];
  LetNextKernelStart();
  WaitForPreviousKernel();

  // Tiles of a prompt's end, which see most, come first.
  const int split = blockIdx.x % p.splits;
  const int head_tile = blockIdx.x / p.splits % (p.kv_heads * query_tiles);
  const int kv_head = head_tile / query_tiles, query_tile = head_tile % query_tiles;
  const int index = tiles - 1 - blockIdx.x / p.splits / (p.kv_heads * query_tiles);
  Tokens mine;
  if constexpr (kPrompt) {
    if (!FindTokens(p, index, tile_tokens, &mine)) return;
  } else {
    mine = {RowOf(p, index), index, 1};
  }
  const int slot = p.slots[mine.row];
  if (slot < 0) return;
  const int group = p.heads / p.kv_heads;
  const int heads = min(tile_queries, group - query_tile * tile_queries);
  const int first_head = kv_head * group + query_tile * tile_queries;
  const int64_t row_begin = p.positions[mine.row];
  const int row_first = p.row_offsets[mine.row];
  const int64_t first_position = row_begin + mine.token - row_first;
  const int64_t last_position = first_position + mine.tokens - 1;
  const int64_t first_seen = p.First(first_position);

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  // This thread's two queries, rows lane / 4 and 8 more of the warp's.
  int query_token[2], query_head[2];
  int64_t seen_from[2], seen_to[2];
  bool is_query[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int query = (kPrompt ? warp * kTile : 0) + lane / 4 + 8 * i;
    query_token[i] = mine.token + query / heads;
    query_head[i] = first_head + query % heads;
    is_query[i] = query < mine.tokens * heads;
    const int64_t position = row_begin + query_token[i] - row_first;
    seen_from[i] = is_query[i] ? p.First(position) : 0;
    seen_to[i] = is_query[i] ? position + 1 : 0;
  }
  uint32_t q[kDim / 16][4];
#pragma unroll
  for (int i = 0; i < kDim / 16; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int column = i * 16 + 2 * (lane % 4) + j / 2 * 8, at = j % 2;
      float2 pair = {};
      if (is_query[at] && column < p.key_dim) {
        pair = *reinterpret_cast<const float2*>(
            p.q + (int64_t{query_token[at]} * p.heads + query_head[at]) * p.key_dim + column);
      }
      q[i][j] = RoundPair(pair.x, pair.y, __nv_bfloat16());
    }
  }

  const int64_t first_block = first_seen / kContextBlock;
  const int prefix_blocks = p.prefix_blocks();
  const int64_t count = prefix_blocks + p.kinds * (last_position / kContextBlock - first_block + 1);
  const int64_t share = (count + p.splits - 1) / p.splits;
  const int64_t begin = split * share, end = min(count, begin + share);

  const auto block_of = [&](int64_t n) {
    const bool fixed = n < prefix_blocks;
    const int kind = fixed ? 0 : static_cast<int>((n - prefix_blocks) % p.kinds);
    const int64_t block = fixed ? n : first_block + (n - prefix_blocks) / p.kinds;
    return KeyBlock{fixed, kind, block, block * kContextBlock};
  };
  constexpr int kPieces = kDim / 8;
  // Rows that no query of the tile sees are zeros.
  const auto fetch = [&](int64_t n) {
    const KeyBlock b = block_of(n);
    unsigned char* const stage = shared + (n - begin) % kStages * S::kStageBytes;
    const int from = b.fixed ? 0 : static_cast<int>(max(first_seen - b.begin, int64_t{0}));
    const int to = static_cast<int>(
        min((b.fixed ? int64_t{p.prefix} : last_position + 1) - b.begin, int64_t{kContextBlock}));
    const auto of_field = [&](unsigned char* at, const Field& field, const __nv_bfloat16* copy,
                              const float* prefix, int dim) {
      const std::byte* const rows = b.fixed ? nullptr : field.Block(slot, b.block);
#pragma unroll 4
      for (int i = threadIdx.x; i < kContextBlock * kPieces; i += S::kThreads) {
        const int j = i / kPieces, piece = i % kPieces;
        const bool inside = j >= from && j < to && piece * 8 < dim;
        unsigned char* const place = at + Place<kDim>(j, piece);
        if (b.fixed) {
          uint4 eight = {};
          if (inside) {
            const float* row = prefix + ((b.begin + j) * p.kv_heads + kv_head) * dim + piece * 8;
            eight = RoundEight<__nv_bfloat16>(*reinterpret_cast<const float4*>(row),
                                              *reinterpret_cast<const float4*>(row + 4));
          }
          *reinterpret_cast<uint4*>(place) = eight;
          continue;
        }
        const int64_t position = b.begin + j;
        const auto* row = reinterpret_cast<const __nv_bfloat16*>(rows + j * field.row_bytes);
        if (copy != nullptr && position >= row_begin) {
          row = copy + (row_first + position - row_begin) * p.kv_heads * dim;
        }
        CopyAsync16(SharedAddress(place), inside ? row + kv_head * dim + piece * 8 : row, inside);
      }
    };
    of_field(stage, p.keys[b.kind], own.k[b.kind], p.prefix_keys, p.key_dim);
    of_field(stage + S::kFieldBytes, p.values[b.kind], own.v[b.kind], p.prefix_values, p.value_dim);
  };

  float out[kDim / 8][4] = {};
  float largest[2] = {-INFINITY, -INFINITY}, total[2] = {};
  const float scale = p.scale * kLog2E;
  const int warp_key = kPrompt ? 0 : warp * S::kWarpKeys;

  if (begin < end) fetch(begin);
  CommitCopies();
  for (int64_t n = begin; n < end; ++n) {
    if (n + 1 < end) fetch(n + 1);
    CommitCopies();
    WaitCopies<1>();
    __syncthreads();
    const KeyBlock b = block_of(n);
    const uint32_t keys = SharedAddress(shared + (n - begin) % kStages * S::kStageBytes);
    const uint32_t values = keys + S::kFieldBytes;

    float scores[S::kWarpKeys / 8][4] = {};
#pragma unroll
    for (int t = 0; t < S::kWarpKeys / 8; ++t) {
      const int row = warp_key + t * 8 + lane % 8;
#pragma unroll
      for (int i = 0; i < kDim / 32; ++i) {
        uint32_t m[4];
        LoadMatrices(m, keys + Place<kDim>(row, i * 4 + lane / 8));
        MultiplyAdd(scores[t], q[2 * i], m[0], m[1], __nv_bfloat16());
        MultiplyAdd(scores[t], q[2 * i + 1], m[2], m[3], __nv_bfloat16());
      }
    }

    // What each of the two queries sees of the block.
    int from[2], to[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t low = b.fixed ? 0 : seen_from[i], high = b.fixed ? p.prefix : seen_to[i];
      from[i] = static_cast<int>(max(low - b.begin, int64_t{0}));
      to[i] = static_cast<int>(max(min(high - b.begin, int64_t{kContextBlock}), int64_t{0}));
    }
    float most[2] = {-INFINITY, -INFINITY};
    const bool all = max(from[0], from[1]) == 0 && min(to[0], to[1]) == kContextBlock;
#pragma unroll
    for (int t = 0; t < S::kWarpKeys / 8; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (!all) {
          const int j = warp_key + t * 8 + 2 * (lane % 4) + e % 2;
          if (j < from[e / 2] || j >= to[e / 2]) scores[t][e] = -INFINITY;
        }
        most[e / 2] = fmaxf(most[e / 2], scores[t][e]);
      }
    }
    float base[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float now = fmaxf(largest[i], scale * FourLanes(most[i], Larger));
      base[i] = now == -INFINITY ? 0.0f : now;
      const float factor = exp2f(largest[i] - base[i]);
      largest[i] = now;
      total[i] *= factor;
#pragma unroll
      for (int t = 0; t < kDim / 8; ++t) {
        out[t][2 * i] *= factor;
        out[t][2 * i + 1] *= factor;
      }
    }
#pragma unroll
    for (int t = 0; t < S::kWarpKeys / 8; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        scores[t][e] = exp2f(fmaf(scale, scores[t][e], -base[e / 2]));
        total[e / 2] += scores[t][e];
      }
    }

#pragma unroll
    for (int i = 0; i < S::kWarpKeys / 16; ++i) {
      const uint32_t weights[4] = {
          RoundPair(scores[2 * i][0], scores[2 * i][1], __nv_bfloat16()),
          RoundPair(scores[2 * i][2], scores[2 * i][3], __nv_bfloat16()),
          RoundPair(scores[2 * i + 1][0], scores[2 * i + 1][1], __nv_bfloat16()),
          RoundPair(scores[2 * i + 1][2], scores[2 * i + 1][3], __nv_bfloat16())};
      const int row = warp_key + i * 16 + lane % 16;
#pragma unroll
      for (int t = 0; t < kDim / 8; t += 2) {
        uint32_t m[4];
        LoadTransposed(m, values + Place<kDim>(row, t + lane / 16));
        MultiplyAdd(out[t], weights, m[0], m[1], __nv_bfloat16());
        MultiplyAdd(out[t + 1], weights, m[2], m[3], __nv_bfloat16());
      }
    }
    __syncthreads();  // the stage has been read
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) total[i] = FourLanes(total[i], Sum);

  // A head of a token to where it belongs. Largest scores are of powers of two here.
  const auto part_of = [&](int token, int head) {
    return (int64_t{token} * p.heads + head) * p.splits + split;
  };
  const auto put = [&](int token, int head, int column, float2 sums, float by) {
    float* const to = p.splits == 1 ? p.out + (int64_t{token} * p.heads + head) * p.value_dim
                                    : p.sums + part_of(token, head) * p.value_dim;
    *reinterpret_cast<float2*>(to + column) = {by * sums.x, by * sums.y};
  };
  const auto note = [&](int token, int head, float most, float sum) {
    if (p.splits == 1) return;
    p.largest[part_of(token, head)] = most / kLog2E;
    p.total[part_of(token, head)] = sum;
  };
  if constexpr (kPrompt) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!is_query[i]) continue;
      const float by = p.splits == 1 ? 1.0f / total[i] : 1.0f;
#pragma unroll
      for (int t = 0; t < kDim / 8; ++t) {
        const int column = t * 8 + 2 * (lane % 4);
        if (column >= p.value_dim) continue;
        put(query_token[i], query_head[i], column, {out[t][2 * i], out[t][2 * i + 1]}, by);
      }
      if (lane % 4 == 0) note(query_token[i], query_head[i], largest[i], total[i]);
    }
    return;
  }
  // The last stage has been read by all.
  float* const found = reinterpret_cast<float*>(shared);  // [kWarps, kTile, kDim]
  float* const found_most = found + S::kWarps * kTile * kDim;
  float* const found_total = found_most + S::kWarps * kTile;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int query = warp * kTile + lane / 4 + 8 * i;
    if (!is_query[i]) continue;
#pragma unroll
    for (int t = 0; t < kDim / 8; ++t) {
      *reinterpret_cast<float2*>(found + query * kDim + t * 8 + 2 * (lane % 4)) = {
          out[t][2 * i], out[t][2 * i + 1]};
    }
    if (lane % 4 == 0) {
      found_most[query] = largest[i];
      found_total[query] = total[i];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < heads * (p.value_dim / 2); i += S::kThreads) {
    const int query = i / (p.value_dim / 2), column = i % (p.value_dim / 2) * 2;
    float most = -INFINITY;
#pragma unroll
    for (int w = 0; w < S::kWarps; ++w) most = fmaxf(most, found_most[w * kTile + query]);
    const float from = most == -INFINITY ? 0.0f : most;
    float2 sums = {};
    float all = 0;
#pragma unroll
    for (int w = 0; w < S::kWarps; ++w) {
      const float factor = exp2f(found_most[w * kTile + query] - from);
      const float2 pair =
          *reinterpret_cast<const float2*>(found + (w * kTile + query) * kDim + column);
      sums = {fmaf(factor, pair.x, sums.x), fmaf(factor, pair.y, sums.y)};
      all = fmaf(factor, found_total[w * kTile + query], all);
    }
    put(mine.token, first_head + query, column, sums, p.splits == 1 ? 1.0f / all : 1.0f);
    if (column == 0) note(mine.token, first_head + query, most, all);
  }
}

// Keys or values of the step as rows of a context: four numbers a thread.
struct Rounding {
  const float* from[4];
  __nv_bfloat16* to[4];
  int64_t fours[4];  // of them and of those before
};

__global__ void __launch_bounds__(256) RoundStep(const __grid_constant__ Rounding r) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x;
  int field = 0;
  while (field < 4 && i >= r.fours[field]) ++field;
  if (field == 4) return;
  if (field > 0) i -= r.fours[field - 1];
  const float4 four = reinterpret_cast<const float4*>(r.from[field])[i];
  reinterpret_cast<uint2*>(r.to[field])[i] = {RoundPair(four.x, four.y, __nv_bfloat16()),
                                              RoundPair(four.z, four.w, __nv_bfloat16())};
}

// Copies of the step's keys and values in `memory`.
Own RoundOwn(Device& device, const Problem& p, int64_t tokens, void* memory) {
  Own own = {};
  Rounding rounding = {};
  auto* to = static_cast<__nv_bfloat16*>(memory);
  int64_t fours = 0;
  const int64_t keys = tokens * p.kv_heads * p.key_dim, values = tokens * p.kv_heads * p.value_dim;
  for (int field = 0; field < 4; ++field) {
    const int kind = field / 2;
    const bool is_key = field % 2 == 0;
    if (kind < p.kinds) {
      const int64_t n = is_key ? keys : values;
      rounding.from[field] = is_key ? p.k[kind] : p.v[kind];
      rounding.to[field] = to;
      (is_key ? own.k : own.v)[kind] = to;
      to += n;
      fours += n / 4;
    }
    rounding.fours[field] = fours;
  }
  LaunchOverlapping(device, "RoundStep", RoundStep, static_cast<int>((fours + 255) / 256), 256, 0,
                    1, rounding);
  return own;
}

template <int kDim, bool kPrompt>
void Launch(Device& device, Problem p, int64_t tokens, int64_t most_blocks, bool copies) {
  using S = Shape<kDim, kPrompt>;
  const int group = p.heads / p.kv_heads;
  const int tile_queries = std::min(group, kTile);
  const int query_tiles = (group + tile_queries - 1) / tile_queries;
  const int tile_tokens = kPrompt ? S::kQueries / tile_queries : 1;
  // Each row may have one tile that is not full.
  const int64_t tiles =
      kPrompt ? std::min<int64_t>(tokens, (tokens + tile_tokens - 1) / tile_tokens + p.rows - 1)
              : tokens;
  const int64_t blocks = tiles * p.kv_heads * query_tiles;
  const int64_t wanted = int64_t{kPrompt ? 1 : kBlocksPerMultiprocessor} * device.multiprocessors();
  p.splits = static_cast<int>(
      std::clamp<int64_t>(wanted / blocks, 1, std::min<int64_t>(most_blocks, kMostSplits)));
  const int64_t copied =
      copies ? tokens * p.kinds * p.kv_heads * (p.key_dim + p.value_dim) * int64_t{2} : 0;
  void* const memory = AllocateParts(device, p, tokens, copied);
  if (copied > 0 && memory == nullptr) return;  // the device knows
  const Own own = copies ? RoundOwn(device, p, tokens, memory) : Own{};
  LaunchOverlapping(device, "Attend", Attend<kDim, kPrompt>, static_cast<int>(blocks * p.splits),
                    S::kThreads, S::kSharedBytes, 1, p, own, query_tiles, tile_queries, tile_tokens,
                    static_cast<int>(tiles));
  if (p.splits > 1) CombineParts(device, p, tokens);
}

}  // namespace

bool TakesTensorCores(const Device& device, const Problem& p, const AttentionArgs& args) {
  return device.compute_dtype() == DType::kBF16 && args.keys.dtype == DType::kBF16 &&
         std::max(p.key_dim, p.value_dim) <= kMostDim && p.key_dim % 8 == 0 &&
         p.value_dim % 8 == 0 &&
         AreAligned(args.q, args.k, args.v, args.other_k, args.other_v, args.out, args.prefix_keys,
                    args.prefix_values);
}

void TensorCoreAttention(Device& device, Problem p, const AttentionArgs& args,
                         int64_t most_blocks) {
  const int64_t tokens = args.q.shape[0];
  const bool single = args.longest_row == 1;
  // Of a ring, the step's last tokens take the place of what lies a whole ring before them.
  const int64_t seen = p.window > 0 ? p.window : p.segment;
  const bool stores_first =
      seen == 0 ||
      (args.longest_row > 0 && args.longest_row <= args.keys.table.positions() - seen + 1);
  if (stores_first) StoreStep(device, p, tokens, args.keys.dtype);
  const bool wide = std::max(p.key_dim, p.value_dim) > 64;
  const auto launch = single ? (wide ? Launch<128, false> : Launch<64, false>)
                             : (wide ? Launch<128, true> : Launch<64, true>);
  launch(device, p, tokens, most_blocks, !stores_first);
  if (!stores_first) StoreStep(device, p, tokens, args.keys.dtype);
}

}  // namespace mneme::cuda::attention
