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
constexpr int kMostSplits = 64;  // that share a token's positions
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
  // Mostly, every row has a token.
  const bool in_turn =
      token < p.rows && p.row_offsets[token] == token && p.row_offsets[token + 1] > token;
  const int row = in_turn ? token : RowOf(p, token);
  if (p.slots[row] < 0) return;
  const int group = p.heads / p.kv_heads;
  const Tile tile(p, row, token, 1, kv_head, kv_head * group + query_tile * tile_queries,
                  min(tile_queries, group - query_tile * tile_queries));
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int share = (tile.blocks + p.splits - 1) / p.splits;
  const int begin = split * share, end = min(tile.blocks, begin + share);
  const auto stage = [&](int n) { return shared + (n - begin) % kStages * S::kStageBytes; };
  const auto fetch = [&](int n) {
    if (n < end) {
      Fetch<kDim, kThreads, true>(p, {}, tile, n, query_tile == 0, stage(n),
                                  stage(n) + S::kFieldBytes);
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
    const int2 seen[2] = {queries[0].Seen(p, b), queries[1].Seen(p, b)};
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
  p.splits = static_cast<int>(
      std::clamp<int64_t>(wanted / blocks, 1, std::min<int64_t>(most_blocks, kMostSplits)));
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
