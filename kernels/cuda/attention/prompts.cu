// Attention of prompts on Hopper's tensor cores (flash attention, arXiv:2307.08691 and 2407.08608):
// a block of threads takes 128 queries, pairs of a token and one of the heads that share keys and
// values, and goes over the blocks of positions that they see. Values are multiplied by one block's
// weights while the scores of the next become weights.
//
// The step's own keys and values are stored first where that hides no position that one of its
// tokens still sees, and are read from a copy of their own where a ring would lose them.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/attention/tiles.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/wgmma.cuh"

namespace mneme::cuda::attention {
namespace {

constexpr int kWarpgroups = 2;
constexpr int kThreads = kWarpgroups * 128;
constexpr int kQueries = kWarpgroups * 64;
constexpr int kStages = 4;

template <int kDim>
struct Shape {
  static constexpr int kFieldBytes = kDim / 64 * kGroupBytes;
  static constexpr int kStageBytes = 2 * kFieldBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024;  // to align them in
};

template <int kDim>
__global__ void __launch_bounds__(kThreads, 1)
    Prompts(const __grid_constant__ Problem p, const Own own, int query_tiles, int tile_queries,
            int tile_tokens, int tiles) {
#if __CUDA_ARCH__ >= 900
  using S = Shape<kDim>;
  extern __shared__ unsigned char unaligned[];
  unsigned char* const shared = unaligned + (1024 - SharedAddress(unaligned) % 1024) % 1024;
  LetNextKernelStart();
  WaitForPreviousKernel();

  const int head_tile = blockIdx.x % (p.kv_heads * query_tiles);
  const int kv_head = head_tile / query_tiles, query_tile = head_tile % query_tiles;
  // Tiles of a prompt's end, which see most, come first.
  int row = 0, token = 0, tokens = 0;
  if (!FindTokens(p.row_offsets, p.rows, tiles - 1 - blockIdx.x / (p.kv_heads * query_tiles),
                  tile_tokens, &row, &token, &tokens)) {
    return;
  }
  if (p.slots[row] < 0) return;
  const int group = p.heads / p.kv_heads;
  const Tile tile(p, row, token, tokens, kv_head, kv_head * group + query_tile * tile_queries,
                  min(tile_queries, group - query_tile * tile_queries));
  const auto stage = [&](int n) { return shared + n % kStages * S::kStageBytes; };
  const auto fetch = [&](int n) {
    if (n < tile.blocks) {
      Fetch<kDim, kThreads, false>(p, own, tile, n, false, stage(n), stage(n) + S::kFieldBytes);
    }
    CommitCopies();
  };
  fetch(0);
  fetch(1);

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const Query queries[2] = {Query(p, tile, warp * 16 + lane / 4),
                            Query(p, tile, warp * 16 + lane / 4 + 8)};
  uint32_t q[kDim / 16][4];
  LoadQueries<kDim>(p, queries, q);
  Sums<kDim> sums;
  const float scale = p.scale * kLog2E;

  constexpr int kTiles = kContextBlock / 8, kSixteens = kContextBlock / 16;
  float scores[kTiles][4];
  uint32_t weights[kSixteens][4];
  const auto multiply_keys = [&](int n) {
    const uint32_t keys = SharedAddress(stage(n));
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[t][e] = 0;
    }
    BeginProducts();
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      MultiplyRows(scores, q[i],
                   DescribeMatrix(keys + i / 4 * kGroupBytes) + i % 4 * kSixteenColumns);
    }
    CommitProducts();
  };
  const auto multiply_values = [&](int n) {
    const uint32_t values = SharedAddress(stage(n)) + S::kFieldBytes;
    BeginProducts();
#pragma unroll
    for (int i = 0; i < kSixteens; ++i) {
#pragma unroll
      for (int g = 0; g < kDim / 64; ++g) {
        MultiplyColumns(reinterpret_cast<float(&)[8][4]>(sums.out[8 * g]), weights[i],
                        DescribeMatrix(values + g * kGroupBytes + i * 16 * 128));
      }
    }
    CommitProducts();
  };
  // The next block is there for all, and nobody reads the stage of the one three before it any
  // more.
  const auto await = [&] {
    WaitCopies<1>();
    PublishToProducts();
    __syncthreads();
  };
  const auto weigh = [&](int n, float(&factors)[2]) {
    const KeyBlock b(p, tile, n);
    const int2 seen[2] = {queries[0].Seen(p, b), queries[1].Seen(p, b)};
    sums.template Weigh<kContextBlock>(seen, 0, scale, scores, factors);
  };

  float factors[2];
  await();
  multiply_keys(0);
  fetch(2);
  WaitProducts<0>();
  weigh(0, factors);
#pragma unroll
  for (int i = 0; i < kSixteens; ++i) RoundWeights(scores, i, weights[i]);
  for (int n = 1; n < tile.blocks; ++n) {
    await();
    multiply_keys(n);
    multiply_values(n - 1);
    fetch(n + 2);
    WaitProducts<1>();
    weigh(n, factors);
    WaitProducts<0>();
    sums.Scale(factors);
#pragma unroll
    for (int i = 0; i < kSixteens; ++i) RoundWeights(scores, i, weights[i]);
  }
  multiply_values(tile.blocks - 1);
  WaitProducts<0>();
  sums.Finish();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (!queries[i].exists) continue;
    const float by = 1.0f / sums.total[i];
    float* const out = OutOf(p, queries[i].token, queries[i].head, 0);
#pragma unroll
    for (int t = 0; t < kDim / 8; ++t) {
      const int column = t * 8 + 2 * (lane % 4);
      if (column >= p.value_dim) continue;
      *reinterpret_cast<float2*>(out + column) = {by * sums.out[t][2 * i],
                                                  by * sums.out[t][2 * i + 1]};
    }
  }
#endif
}

// Keys or values of the step as rows of a context: four numbers a thread.
struct Rounding {
  const float* from[4];
  __nv_bfloat16* to[4];
  int64_t ends[4];  // of these and those before, in fours
};

__global__ void __launch_bounds__(256) RoundStep(const __grid_constant__ Rounding r) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x;
  int field = 0;
  while (field < 4 && i >= r.ends[field]) ++field;
  if (field == 4) return;
  if (field > 0) i -= r.ends[field - 1];
  const float4 four = reinterpret_cast<const float4*>(r.from[field])[i];
  reinterpret_cast<uint2*>(r.to[field])[i] = {RoundPair(four.x, four.y, __nv_bfloat16()),
                                              RoundPair(four.z, four.w, __nv_bfloat16())};
}

// Copies of the step's keys and values in scratch memory; without any where there is none.
Own RoundOwn(Device& device, const Problem& p, int64_t tokens) {
  Own own = {};
  const int64_t keys = tokens * p.kv_heads * p.key_dim, values = tokens * p.kv_heads * p.value_dim;
  auto* to = static_cast<__nv_bfloat16*>(device.Scratch(2 * p.kinds * (keys + values)));
  if (to == nullptr) return own;
  Rounding rounding = {};
  int64_t fours = 0;
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
    rounding.ends[field] = fours;
  }
  LaunchOverlapping(device, "RoundStep", RoundStep, static_cast<int>((fours + 255) / 256), 256, 0,
                    1, rounding);
  return own;
}

template <int kDim>
void Launch(Device& device, Problem p, const Own& own, int64_t tokens) {
  const int group = p.heads / p.kv_heads;
  const int tile_queries = std::min(group, kQueries);
  const int query_tiles = (group + tile_queries - 1) / tile_queries;
  const int tile_tokens = kQueries / tile_queries;
  // Each row may have one tile that is not full.
  const auto tiles = static_cast<int>(
      std::min<int64_t>(tokens, (tokens + tile_tokens - 1) / tile_tokens + p.rows - 1));
  p.splits = 1;
  LaunchOverlapping(device, "Prompts", Prompts<kDim>, tiles * p.kv_heads * query_tiles, kThreads,
                    Shape<kDim>::kSharedBytes, 1, p, own, query_tiles, tile_queries, tile_tokens,
                    tiles);
}

}  // namespace

void AttendPrompts(Device& device, const Problem& p, int64_t tokens, bool copies) {
  const Own own = copies ? RoundOwn(device, p, tokens) : Own{};
  if (copies && own.k[0] == nullptr) return;  // the device knows
  const bool wide = std::max(p.key_dim, p.value_dim) > 64;
  (wide ? Launch<128> : Launch<64>)(device, p, own, tokens);
}

}  // namespace mneme::cuda::attention
