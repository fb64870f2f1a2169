// The router's choice, and the sort of a step's (token, memory) pairs into entries. Both give the
// same result however the device schedules them: there are no floating-point atomics, and positions
// come from counting, not from arrival.
#include <algorithm>
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/common/blocks.h"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/routing/rank.cuh"
#include "kernels/cuda/routing/routing.h"

namespace mneme::cuda::routing {
namespace {

// ---------------------------------------------------------------------------------- RouteTopK

// kLanes lanes of a warp share a token. The j-th choice is the best of those ranked behind the one
// before it, so nothing has to be remembered but that one.
template <int kLanes>
__global__ void RouteTopKKernel(const float* logits, const int32_t* forced, int64_t tokens,
                                int memories, int top_k, bool round, int32_t* indices,
                                float* weights) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int lane = threadIdx.x % kLanes;
  const bool active = thread / kLanes < tokens;
  const int64_t token = active ? thread / kLanes : tokens - 1;
  logits += token * memories;
  indices += token * top_k;
  weights += token * top_k;
  const auto logit_of = [=](int memory) {
    const float logit = logits[memory];
    return round ? __bfloat162float(__float2bfloat16_rn(logit)) : logit;
  };

  if (forced != nullptr) {
    for (int j = lane; j < top_k; j += kLanes) {
      if (active) indices[j] = forced[token * top_k + j];
    }
  } else {
    uint64_t last = ~uint64_t{0};
    for (int j = 0; j < top_k; ++j) {
      uint64_t best = 0;
      for (int m = lane; m < memories; m += kLanes) {
        const uint64_t rank = RouteRank(logit_of(m), m);
        if (rank < last && rank > best) best = rank;
      }
#pragma unroll
      for (int offset = kLanes / 2; offset > 0; offset /= 2) {
        const uint64_t other = __shfl_xor_sync(kAllLanes, best, offset);
        best = other > best ? other : best;
      }
      if (active && lane == 0) {
        indices[j] = MemoryOfRank(best);
      }
      last = best;
    }
  }
  __syncwarp();
  if (!active) return;
  // Every lane sums in the order of the choices.
  float largest = -INFINITY;
  for (int j = 0; j < top_k; ++j) largest = fmaxf(largest, logit_of(indices[j]));
  float sum = 0;
  for (int j = 0; j < top_k; ++j) sum += expf(logit_of(indices[j]) - largest);
  for (int j = lane; j < top_k; j += kLanes) {
    weights[j] = expf(logit_of(indices[j]) - largest) / sum;
  }
}

// ----------------------------------------------------------------------------------- Dispatch
//
// A pair is a (token, choice), numbered in that order. A pair's entry is the number of pairs of
// lower memories, plus the number of earlier pairs of its own: a stable counting sort. Pairs of one
// memory end up in token order, and rows are runs of tokens, so a segment's first entry is found by
// searching its memory's entries for the row's first token.

struct DispatchParams {
  const int32_t* row_offsets;
  const int32_t* row_slots;
  const int32_t* indices;
  int64_t pairs;  // tokens * top_k
  int tokens, top_k, choices, memories, rows;
  bool shared;
  StateView written;
  int32_t* entry_tokens;
  int32_t* token_entries;
  int32_t* group_offsets;
  int32_t* offsets;
  int32_t* slots;
  int32_t* segment_memories;
  int32_t* fresh;
};

__device__ inline unsigned LanesBelow() { return (1u << (threadIdx.x % kWarp)) - 1; }

__device__ inline void WriteEntry(const DispatchParams& p, int pair, int entry) {
  const int token = pair / p.top_k;
  p.entry_tokens[entry] = token;
  p.token_entries[int64_t{token} * p.choices + (pair - token * p.top_k)] = entry;
}

__device__ inline void WriteSharedEntry(const DispatchParams& p, int token) {
  const int entry = static_cast<int>(p.pairs) + token;
  p.entry_tokens[entry] = token;
  p.token_entries[int64_t{token} * p.choices + p.top_k] = entry;
}

// Needs group_offsets and the entries' tokens, by token_of(entry).
template <typename TokenOf>
__device__ inline void WriteSegment(const DispatchParams& p, int s, TokenOf token_of) {
  const int memory = s / p.rows, row = s - memory * p.rows;
  const int first_token = p.row_offsets[row], end_token = p.row_offsets[row + 1];
  int begin;
  bool used;
  if (memory == p.memories) {
    begin = static_cast<int>(p.pairs) + first_token;
    used = end_token > first_token;
  } else {
    begin = p.group_offsets[memory];
    const int end = p.group_offsets[memory + 1];
    for (int high = end; begin < high;) {
      const int middle = begin + (high - begin) / 2;
      if (token_of(middle) < first_token) {
        begin = middle + 1;
      } else {
        high = middle;
      }
    }
    used = begin < end && token_of(begin) < end_token;
  }
  const int slot = p.row_slots[row];
  int fresh = 0;
  if (slot >= 0 && used) {
    uint8_t* written = MemoryAt<uint8_t>(p.written, slot, memory);
    fresh = *written == 0 ? 1 : 0;
    *written = 1;
  }
  p.offsets[s] = begin;
  p.slots[s] = slot;
  p.segment_memories[s] = memory;
  p.fresh[s] = fresh;
}

__device__ inline void WriteTotals(const DispatchParams& p) {
  const int entries = static_cast<int>(p.pairs) + (p.shared ? p.tokens : 0);
  p.group_offsets[p.memories] = static_cast<int>(p.pairs);
  if (p.shared) p.group_offsets[p.memories + 1] = entries;
  p.offsets[(p.memories + (p.shared ? 1 : 0)) * p.rows] = entries;
}

// Exclusive sum of table[0, n) in place, by one block of at most 1024 threads, whose warps are
// full. `scratch` has kWarp ints.
__device__ inline void BlockScan(int32_t* table, int n, int32_t* scratch) {
  const int threads = blockDim.x, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int each = (n + threads - 1) / threads;
  const int begin = min(n, static_cast<int>(threadIdx.x) * each), end = min(n, begin + each);
  int sum = 0;
  for (int i = begin; i < end; ++i) sum += table[i];
  int before = sum;  // of this warp's threads, inclusive
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int other = __shfl_up_sync(kAllLanes, before, offset);
    if (lane >= offset) before += other;
  }
  if (lane == kWarp - 1) scratch[warp] = before;
  __syncthreads();
  before -= sum;
  for (int w = 0; w < warp; ++w) before += scratch[w];
  for (int i = begin; i < end; ++i) {
    const int count = table[i];
    table[i] = before;
    before += count;
  }
  __syncthreads();
}

constexpr int kSmallBytes = 44 << 10;  // of shared memory
constexpr int kSmallTokens = 1 << 16;  // a token must fit in 16 bits
constexpr int kSmallPairs = 8192;

// A decode step in one launch of one block. Shared memory: counts by memory and chunk of 32 pairs,
// then the token of each entry.
__global__ void __launch_bounds__(1024) DispatchSmall(DispatchParams p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  extern __shared__ int32_t table[];
  __shared__ int32_t scratch[kWarp];
  const int pairs = static_cast<int>(p.pairs);
  const int chunks = (pairs + kWarp - 1) / kWarp, cells = p.memories * chunks;
  uint16_t* tokens = reinterpret_cast<uint16_t*>(table + cells);
  const int thread = threadIdx.x, threads = blockDim.x;
  const int lane = thread % kWarp, warp = thread / kWarp, warps = threads / kWarp;

  for (int i = thread; i < cells; i += threads) table[i] = 0;
  __syncthreads();
  for (int c = warp; c < chunks; c += warps) {
    const int pair = c * kWarp + lane;
    const int memory = pair < pairs ? p.indices[pair] : -1;
    const unsigned same = __match_any_sync(kAllLanes, memory);
    if (memory >= 0 && (same & LanesBelow()) == 0) table[memory * chunks + c] = __popc(same);
  }
  __syncthreads();
  BlockScan(table, cells, scratch);
  for (int m = thread; m < p.memories && chunks > 0; m += threads) {
    p.group_offsets[m] = table[m * chunks];
  }
  for (int m = thread; m < p.memories && chunks == 0; m += threads) p.group_offsets[m] = 0;
  if (thread == 0) WriteTotals(p);
  for (int c = warp; c < chunks; c += warps) {
    const int pair = c * kWarp + lane;
    const int memory = pair < pairs ? p.indices[pair] : -1;
    const unsigned same = __match_any_sync(kAllLanes, memory);
    if (memory < 0) continue;
    const int entry = table[memory * chunks + c] + __popc(same & LanesBelow());
    WriteEntry(p, pair, entry);
    tokens[entry] = static_cast<uint16_t>(pair / p.top_k);
  }
  if (p.shared) {
    for (int t = thread; t < p.tokens; t += threads) WriteSharedEntry(p, t);
  }
  __syncthreads();
  const int segments = (p.memories + (p.shared ? 1 : 0)) * p.rows;
  for (int s = thread; s < segments; s += threads) {
    WriteSegment(p, s, [tokens](int entry) { return static_cast<int>(tokens[entry]); });
  }
}

// Longer steps: a tile of pairs per block, counted, scanned over the tiles, then placed. Each warp
// has a run of the tile's pairs and a row of counts in shared memory.
constexpr int kTileThreads = 256;
constexpr int kTileWarps = kTileThreads / kWarp;
constexpr int kWarpPairs = 256;
constexpr int kTilePairs = kTileWarps * kWarpPairs;

__device__ inline void CountTile(const DispatchParams& p, int64_t warp_begin, int32_t* counts) {
  const int lane = threadIdx.x % kWarp;
  for (int m = threadIdx.x; m < kTileWarps * p.memories; m += kTileThreads) counts[m] = 0;
  __syncthreads();
  int32_t* own = counts + threadIdx.x / kWarp * p.memories;
  for (int i = 0; i < kWarpPairs; i += kWarp) {
    const int64_t pair = warp_begin + i + lane;
    const int memory = pair < p.pairs ? p.indices[pair] : -1;
    const unsigned same = __match_any_sync(kAllLanes, memory);
    if (memory >= 0 && (same & LanesBelow()) == 0) own[memory] += __popc(same);
    __syncwarp();
  }
  __syncthreads();
}

__device__ inline int64_t WarpBegin() {
  return int64_t{blockIdx.x} * kTilePairs + int64_t{threadIdx.x / kWarp} * kWarpPairs;
}

// table[memory, tile] = number of pairs
__global__ void __launch_bounds__(kTileThreads) CountTiles(DispatchParams p, int32_t* table) {
  extern __shared__ int32_t counts[];
  LetNextKernelStart();
  WaitForPreviousKernel();
  CountTile(p, WarpBegin(), counts);
  for (int m = threadIdx.x; m < p.memories; m += kTileThreads) {
    int sum = 0;
    for (int w = 0; w < kTileWarps; ++w) sum += counts[w * p.memories + m];
    table[m * gridDim.x + blockIdx.x] = sum;
  }
}

__global__ void __launch_bounds__(1024) ScanTiles(DispatchParams p, int32_t* table, int tiles) {
  __shared__ int32_t scratch[kWarp];
  LetNextKernelStart();
  WaitForPreviousKernel();
  BlockScan(table, p.memories * tiles, scratch);
  for (int m = threadIdx.x; m < p.memories; m += blockDim.x) p.group_offsets[m] = table[m * tiles];
  if (threadIdx.x == 0) WriteTotals(p);
}

__global__ void __launch_bounds__(kTileThreads) PlaceTiles(DispatchParams p, const int32_t* table) {
  extern __shared__ int32_t counts[];
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t warp_begin = WarpBegin();
  CountTile(p, warp_begin, counts);
  // Counts become the entry of each warp's first pair of a memory.
  for (int m = threadIdx.x; m < p.memories; m += kTileThreads) {
    int entry = table[m * gridDim.x + blockIdx.x];
    for (int w = 0; w < kTileWarps; ++w) {
      const int count = counts[w * p.memories + m];
      counts[w * p.memories + m] = entry;
      entry += count;
    }
  }
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  int32_t* own = counts + threadIdx.x / kWarp * p.memories;
  for (int i = 0; i < kWarpPairs; i += kWarp) {
    const int64_t pair = warp_begin + i + lane;
    const int memory = pair < p.pairs ? p.indices[pair] : -1;
    const unsigned same = __match_any_sync(kAllLanes, memory);
    if (memory >= 0) {
      WriteEntry(p, static_cast<int>(pair), own[memory] + __popc(same & LanesBelow()));
    }
    __syncwarp();
    if (memory >= 0 && (same & LanesBelow()) == 0) own[memory] += __popc(same);
    __syncwarp();
  }
}

__global__ void WriteSegments(DispatchParams p, int segments) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (p.shared && i < p.tokens) WriteSharedEntry(p, i);
  const int32_t* tokens = p.entry_tokens;
  if (i < segments) WriteSegment(p, i, [tokens](int entry) { return tokens[entry]; });
}

int RoundToWarps(int64_t threads, int most) {
  return static_cast<int>(std::clamp<int64_t>((threads + kWarp - 1) / kWarp * kWarp, kWarp, most));
}

}  // namespace

void RouteTopK(Device& device, const RouteTopKArgs& args) {
  const int64_t tokens = args.logits.shape[0];
  const int memories = static_cast<int>(args.logits.shape[1]);
  const int top_k = static_cast<int>(args.indices.shape[1]);
  CHECK(top_k >= 1 && top_k <= memories) << "top_k " << top_k << " of " << memories;
  if (tokens == 0) return;
  constexpr int kThreads = 128;
  const auto launch = [&](auto kernel, int lanes) {
    LaunchOverlapping(device, "RouteTopK", kernel,
                      static_cast<int>((tokens * lanes + kThreads - 1) / kThreads), kThreads, 0, 1,
                      args.logits.as<const float>(), args.forced.as<const int32_t>(), tokens,
                      memories, top_k, args.round_logits == DType::kBF16,
                      args.indices.as<int32_t>(), args.weights.as<float>());
  };
  if (memories <= 4) {
    launch(RouteTopKKernel<4>, 4);
  } else if (memories <= 8) {
    launch(RouteTopKKernel<8>, 8);
  } else if (memories <= 16) {
    launch(RouteTopKKernel<16>, 16);
  } else {
    launch(RouteTopKKernel<32>, 32);
  }
}

void Dispatch(Device& device, const DispatchArgs& args) {
  DispatchParams p = {};
  p.row_offsets = args.row_offsets.as<const int32_t>();
  p.row_slots = args.slots.as<const int32_t>();
  p.indices = args.indices.as<const int32_t>();
  p.tokens = static_cast<int>(args.token_entries.shape[0]);
  p.choices = static_cast<int>(args.token_entries.shape[1]);
  p.top_k = p.choices - (args.shared ? 1 : 0);
  p.pairs = int64_t{p.tokens} * p.top_k;
  p.memories = args.memories;
  p.rows = static_cast<int>(args.slots.shape[0]);
  p.shared = args.shared;
  p.written = args.written;
  p.entry_tokens = args.entry_tokens.as<int32_t>();
  p.token_entries = args.token_entries.as<int32_t>();
  p.group_offsets = args.group_offsets.as<int32_t>();
  p.offsets = args.segments.offsets.as<int32_t>();
  p.slots = args.segments.slots.as<int32_t>();
  p.segment_memories = args.segments.memories.as<int32_t>();
  p.fresh = args.segments.fresh.as<int32_t>();
  const int segments = (p.memories + (p.shared ? 1 : 0)) * p.rows;
  CHECK_EQ(args.segments.count, segments);
  CHECK(p.pairs + p.tokens < (int64_t{1} << 31)) << p.tokens << " tokens";

  const int64_t chunks = (p.pairs + kWarp - 1) / kWarp;
  const int64_t small_bytes = chunks * p.memories * 4 + p.pairs * 2;
  if (p.pairs <= kSmallPairs && p.tokens < kSmallTokens && small_bytes <= kSmallBytes) {
    const int threads = RoundToWarps(std::max<int64_t>({p.pairs, segments, p.tokens}), 1024);
    return LaunchOverlapping(device, "Dispatch", DispatchSmall, 1, threads, small_bytes, 1, p);
  }

  const int tiles = BlocksFor(p.pairs, kTilePairs);
  const size_t count_bytes = sizeof(int32_t) * kTileWarps * p.memories;
  if (tiles > 0) {
    int32_t* table =
        static_cast<int32_t*>(device.Scratch(int64_t{4} * p.memories * std::max(tiles, 1)));
    if (table == nullptr) return;
    LaunchOverlapping(device, "Dispatch", CountTiles, tiles, kTileThreads, count_bytes, 1, p,
                      table);
    LaunchOverlapping(device, "Dispatch", ScanTiles, 1,
                      RoundToWarps(int64_t{p.memories} * tiles, 1024), 0, 1, p, table, tiles);
    LaunchOverlapping(device, "Dispatch", PlaceTiles, tiles, kTileThreads, count_bytes, 1, p,
                      table);
  } else {
    LaunchOverlapping(device, "Dispatch", ScanTiles, 1, kWarp, 0, 1, p, nullptr, 0);
  }
  constexpr int kThreads = 256;
  const int work = std::max(segments, p.tokens);
  if (work > 0) {
    LaunchOverlapping(device, "Dispatch", WriteSegments, (work + kThreads - 1) / kThreads, kThreads,
                      0, 1, p, segments);
  }
}

}  // namespace mneme::cuda::routing
