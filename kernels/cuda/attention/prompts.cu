// Attention of prompts on Hopper's tensor cores (flash attention, arXiv:2307.08691 and 2407.08608):
// a block of threads takes tiles of 128 queries, pairs of a token and one of the heads that share
// keys and values, and goes over the positions that they see, 128 at a time. One warpgroup fetches
// these (prompt_tiles.cuh). Two multiply, 64 queries each: keys, and values by the weights of the
// positions before; in turns, so that one's scores become weights while the other's products run.
//
// The step's own keys and values are stored first where that hides no position that one of its
// tokens still sees, and are read from a copy of their own where a ring would lose them.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/attention/prompt_products.cuh"
#include "kernels/cuda/attention/prompt_tiles.cuh"
#include "kernels/cuda/common/overlap.cuh"

namespace mneme::cuda::attention {
namespace {

constexpr int kThreads = kFetchers + kMultipliers * 128;

template <int kDim>
__global__ void __launch_bounds__(kThreads, 1)
    Prompts(const __grid_constant__ Problem p, const __grid_constant__ Own own,
            const __grid_constant__ Tiling tiling) {
#if __CUDA_ARCH__ >= 900
  using S = Shape<kDim>;
  extern __shared__ unsigned char unaligned[];
  __shared__ Ring<S::kStages> key_ring, value_ring;
  const uint32_t keys = (SharedAddress(unaligned) + 1023) / 1024 * 1024;
  const uint32_t values = keys + S::kStages * S::kStageBytes;
  LetNextKernelStart();
  if (threadIdx.x == 0) {
    key_ring.Init(kMultipliers * 4);
    value_ring.Init(kMultipliers * 4);
    FenceBulkBarriers();
  }
  __syncthreads();
  WaitForPreviousKernel();
  const auto for_each_tile = [&](const auto& work) {
    for (int round = 0; round * static_cast<int>(gridDim.x) < tiling.all; ++round) {
      const TileTokens t(p, tiling, TileOf(round));
      if (!t.exists) continue;
      work(Tile(p, RowPlace(p, t.row), t.token, t.tokens, t.kv_head, t.first_head, t.heads));
    }
  };
  constexpr int kFetcherRegisters = 40, kMultiplierRegisters = 232;  // together all that there are
  if (threadIdx.x < kFetchers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kFetcherRegisters));
    Fetcher<kDim, S::kStages> fetcher = {key_ring, value_ring, keys, values, S::kStageBytes};
    for_each_tile([&](const Tile& tile) { fetcher.FetchTile(p, own, tile); });
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kMultiplierRegisters));
    const int index = Uniform(threadIdx.x / 128) - 1;
    Multiplier<kDim> multiplier = {key_ring, value_ring, keys, values, index};
    if (index == 1) GiveTurn(0);
    for_each_tile([&](const Tile& tile) { multiplier.AttendTile(p, tile); });
    if (index == 0) AwaitTurn(0);  // the one that nobody took
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
  const int work = tiles * p.kv_heads * query_tiles;
  const Tiling tiling = {query_tiles, tile_queries, tile_tokens, tiles, work};
  LaunchOverlapping(device, "Prompts", Prompts<kDim>, std::min(work, device.multiprocessors()),
                    kThreads, Shape<kDim>::kSharedBytes, 1, p, own, tiling);
}

}  // namespace

void AttendPrompts(Device& device, const Problem& p, int64_t tokens, bool copies) {
  const Own own = copies ? RoundOwn(device, p, tokens) : Own{};
  if (copies && own.k[0] == nullptr) return;  // the device knows
  const bool wide = std::max(p.key_dim, p.value_dim) > 64;
  (wide ? Launch<128> : Launch<64>)(device, p, own, tokens);
}

}  // namespace mneme::cuda::attention
