// Which kernel takes which problem, and the one for any: heads of any width, keys and values of
// f32, products that may not round.
//
// A block of threads takes one token, some of the heads that share keys and values, and a part of
// the blocks of positions that the token sees: where a step has few tokens, several share those
// (flash-decoding), and what each has found is put together afterwards. Each goes over its blocks
// of positions with a running maximum (online softmax). The step's own keys and values are stored
// last: of a ring, they take the place of those that the step's first tokens read.
#include <algorithm>
#include <cstdint>

#include "base/log.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/problem.cuh"
#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/common/overlap.cuh"

namespace mneme::cuda::attention {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kValuesOfThread = 2;  // sums of one head, in registers
constexpr int kValues = kThreads * kValuesOfThread;
constexpr int kMostQueries = 8;              // heads of a block of threads
constexpr int kMostQueryFloats = 8192;       // of them, in shared memory
constexpr int kBlocksPerMultiprocessor = 4;  // wanted

Field FieldOf(const ContextView& view) {
  if (view.table.base == nullptr) return {};
  return {view.table.base, view.table.offsets.as<const int64_t>(), view.table.blocks(), view.offset,
          view.row_bytes};
}

// A number as the context keeps it.
template <typename T>
__device__ float Kept(float x) {
  return ToFloat(FromFloat<T>(x));
}

// kQueries heads of one token. Lanes of a warp share a key, threads of the block a value.
template <typename T, int kQueries>
__global__ void __launch_bounds__(kThreads)
    Attend(const __grid_constant__ Problem p, int query_tiles, int value_tiles) {
  extern __shared__ float query[];  // [kQueries, key_dim]
  __shared__ float weights[kQueries][kContextBlock];
  __shared__ float largest[kQueries], total[kQueries], factor[kQueries];

  const int token = blockIdx.x, split = blockIdx.z;
  const int value_tile = blockIdx.y % value_tiles;
  const int query_tile = blockIdx.y / value_tiles % query_tiles;
  const int kv_head = blockIdx.y / (value_tiles * query_tiles);
  const int row = RowOf(p, token);
  const int slot = p.slots[row];
  if (slot < 0) return;
  const int group = p.heads / p.kv_heads;
  const int first_head = kv_head * group + query_tile * kQueries;
  const int queries = min(kQueries, group - query_tile * kQueries);
  const int64_t begin = p.positions[row];  // of the row's first token
  const int64_t position = begin + token - p.row_offsets[row];
  const int64_t first = p.First(position);

  for (int i = threadIdx.x; i < kQueries * p.key_dim; i += kThreads) {
    const int head = i / p.key_dim;
    query[i] = head < queries ? p.q[(int64_t{token} * p.heads + first_head) * p.key_dim + i] : 0;
  }
  if (threadIdx.x < kQueries) {
    largest[threadIdx.x] = -INFINITY;
    total[threadIdx.x] = 0;
  }
  __syncthreads();

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int first_value = value_tile * kValues + threadIdx.x;
  float sums[kQueries][kValuesOfThread] = {};

  const int64_t first_block = first / kContextBlock;
  // Blocks of the prefix come before those of positions.
  const int64_t prefix_blocks = p.prefix_blocks();
  const int64_t count = prefix_blocks + p.kinds * (position / kContextBlock - first_block + 1);
  const int64_t share = (count + p.splits - 1) / p.splits;
  const int64_t end = min(count, (split + 1) * share);
  for (int64_t n = split * share; n < end; ++n) {
    const bool fixed = n < prefix_blocks;
    const int kind = fixed ? 0 : static_cast<int>((n - prefix_blocks) % p.kinds);
    const int64_t block = fixed ? 0 : first_block + (n - prefix_blocks) / p.kinds;
    const int64_t block_begin = fixed ? n * kContextBlock : block * kContextBlock;
    const int from = fixed ? 0 : static_cast<int>(max(first - block_begin, int64_t{0}));
    const int to = static_cast<int>(
        min((fixed ? p.prefix : position + 1) - block_begin, int64_t{kContextBlock}));
    const std::byte* const key_block = p.keys[kind].Block(slot, block);
    const std::byte* const value_block = p.values[kind].Block(slot, block);
    // The token of a position of the step.
    const auto own = [&](int j) {
      return static_cast<int64_t>(p.row_offsets[row]) + block_begin + j - begin;
    };

    for (int j = warp; j < kContextBlock; j += kWarps) {
      if (j < from || j >= to) {
        if (lane < kQueries) weights[lane][j] = -INFINITY;
        continue;
      }
      float scores[kQueries] = {};
      const auto add = [&](int d, float key) {
#pragma unroll
        for (int g = 0; g < kQueries; ++g) scores[g] += query[g * p.key_dim + d] * key;
      };
      if (fixed) {
        const float* key = p.prefix_keys + ((block_begin + j) * p.kv_heads + kv_head) * p.key_dim;
        for (int d = lane; d < p.key_dim; d += kWarp) add(d, key[d]);
      } else if (block_begin + j < begin) {
        const T* key = reinterpret_cast<const T*>(key_block + j * p.keys[kind].row_bytes) +
                       int64_t{kv_head} * p.key_dim;
        for (int d = lane; d < p.key_dim; d += kWarp) add(d, ToFloat(key[d]));
      } else {
        const float* key = p.k[kind] + (own(j) * p.kv_heads + kv_head) * p.key_dim;
        for (int d = lane; d < p.key_dim; d += kWarp) add(d, Kept<T>(key[d]));
      }
#pragma unroll
      for (int g = 0; g < kQueries; ++g) {
        const float score = WarpSum(scores[g]);
        if (lane == 0) weights[g][j] = p.scale * score;
      }
    }
    __syncthreads();

    for (int g = warp; g < kQueries; g += kWarps) {
      float most = fmaxf(weights[g][lane], weights[g][lane + kWarp]);
#pragma unroll
      for (int offset = kWarp / 2; offset > 0; offset /= 2) {
        most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, offset));
      }
      const float now = fmaxf(largest[g], most);
      const float low = expf(weights[g][lane] - now), high = expf(weights[g][lane + kWarp] - now);
      weights[g][lane] = low;
      weights[g][lane + kWarp] = high;
      const float sum = WarpSum(low + high);
      __syncwarp();
      if (lane == 0) {
        factor[g] = expf(largest[g] - now);
        total[g] = total[g] * factor[g] + sum;
        largest[g] = now;
      }
    }
    __syncthreads();

#pragma unroll
    for (int g = 0; g < kQueries; ++g) {
#pragma unroll
      for (int i = 0; i < kValuesOfThread; ++i) sums[g][i] *= factor[g];
    }
    for (int j = from; j < to; ++j) {
      const bool past = !fixed && block_begin + j < begin;
      const T* kept = reinterpret_cast<const T*>(value_block + j * p.values[kind].row_bytes) +
                      int64_t{kv_head} * p.value_dim;
      const float* fresh = fixed ? p.prefix_values : p.v[kind];
      fresh += ((fixed ? block_begin + j : own(j)) * p.kv_heads + kv_head) * p.value_dim;
#pragma unroll
      for (int i = 0; i < kValuesOfThread; ++i) {
        const int d = first_value + i * kThreads;
        if (d >= p.value_dim) continue;
        const float value = past ? ToFloat(kept[d]) : fixed ? fresh[d] : Kept<T>(fresh[d]);
#pragma unroll
        for (int g = 0; g < kQueries; ++g) sums[g][i] += weights[g][j] * value;
      }
    }
    __syncthreads();  // the weights have been read
  }

  for (int g = 0; g < queries; ++g) {
    const int64_t head = int64_t{token} * p.heads + first_head + g;
    const int64_t part = head * p.splits + split;
    const float by = p.splits == 1 ? 1.0f / total[g] : 1.0f;
    const ReadOutput to = p.splits == 1 ? p.output() : ReadOutput{p.sums, false};
    const int64_t at = (p.splits == 1 ? head : part) * p.value_dim;
    // Unrolled over all queries, so that sums stay in registers.
#pragma unroll
    for (int i = 0; i < kValuesOfThread; ++i) {
      const int d = first_value + i * kThreads;
      float sum = 0;
#pragma unroll
      for (int other = 0; other < kQueries; ++other) sum = other == g ? sums[other][i] : sum;
      if (d < p.value_dim) to.Save(at + d, by * sum);
    }
    if (p.splits > 1 && value_tile == 0 && threadIdx.x == 0) {
      p.largest[part] = largest[g];
      p.total[part] = total[g];
    }
  }
}

// What the splits of a head of a token have found, as its output. A split without positions has a
// largest score of minus infinity, and zeros. Groups of kThreads threads divide the splits, each at
// most kSplitsAtOnce of them, whose numbers are all on their way at once.
constexpr int kSplitsAtOnce = 16, kMostSplitGroups = kMostSplits / kSplitsAtOnce;
__global__ void __launch_bounds__(kMostSplitGroups* kThreads)
    Combine(const __grid_constant__ Problem p) {
  __shared__ float weights[kMostSplits], sums[kMostSplitGroups][kThreads];
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t head = blockIdx.x;
  const int groups = static_cast<int>(blockDim.x) / kThreads;
  const int group = threadIdx.x / kThreads, column = threadIdx.x % kThreads;
  if (threadIdx.x < kWarp) {
    constexpr int kOfLane = kMostSplits / kWarp;
    float largest[kOfLane], total[kOfLane], most = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int s = threadIdx.x + i * kWarp;
      largest[i] = s < p.splits ? p.largest[head * p.splits + s] : -INFINITY;
      total[i] = s < p.splits ? p.total[head * p.splits + s] : 0;
      most = fmaxf(most, largest[i]);
    }
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, offset));
    }
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      largest[i] = expf(largest[i] - most);
      sum += largest[i] * total[i];
    }
    sum = WarpSum(sum);
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) weights[threadIdx.x + i * kWarp] = largest[i] / sum;
  }
  // Of a padding row nothing was found, and nothing is saved.
  const bool exists = p.slots[RowOf(p, static_cast<int>(head / p.heads))] >= 0;
  for (int first = 0; first < p.value_dim; first += kThreads) {
    const int d = first + column;
    float found[kSplitsAtOnce];
#pragma unroll
    for (int i = 0; i < kSplitsAtOnce; ++i) {
      const int s = group + i * groups;
      const bool there = s < p.splits && d < p.value_dim;
      found[i] = there ? p.sums[(head * p.splits + s) * p.value_dim + d] : 0;
    }
    __syncthreads();  // weights are there, sums have been read
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kSplitsAtOnce; ++i) {
      const int s = group + i * groups;
      if (s < p.splits) sum += weights[s] * found[i];
    }
    sums[group][column] = sum;
    __syncthreads();
    if (group > 0 || d >= p.value_dim || !exists) continue;
    for (int i = 1; i < groups; ++i) sum += sums[i][column];
    p.output().Save(head * p.value_dim + d, sum);
  }
}

// Keys and values of a token to their rows, unless a later token of the step has the same ones.
// kEights: they come in aligned eights, and T is bf16.
template <typename T, bool kEights>
__global__ void __launch_bounds__(kThreads) Store(const __grid_constant__ Problem p) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int token = blockIdx.x;
  const int row = RowOf(p, token);
  const int slot = p.slots[row];
  if (slot < 0) return;
  const int64_t position = p.positions[row] + token - p.row_offsets[row];
  const int64_t end = p.positions[row] + p.row_offsets[row + 1] - p.row_offsets[row];
  if (position < end - p.keys[0].blocks * kContextBlock) return;
  for (int kind = 0; kind < p.kinds; ++kind) {
    const auto row_of = [&](const Field& field) {
      return reinterpret_cast<T*>(field.Block(slot, position / kContextBlock) +
                                  position % kContextBlock * field.row_bytes);
    };
    T* const to[2] = {row_of(p.keys[kind]), row_of(p.values[kind])};
    const int widths[2] = {p.kv_heads * p.key_dim, p.kv_heads * p.value_dim};
    const float* const from[2] = {p.k[kind] + int64_t{token} * widths[0],
                                  p.v[kind] + int64_t{token} * widths[1]};
    if constexpr (kEights) {
      for (int i = threadIdx.x * 8; i < max(widths[0], widths[1]); i += kThreads * 8) {
        float4 read[2][2];
#pragma unroll
        for (int f = 0; f < 2; ++f) {
          if (i >= widths[f]) continue;
          read[f][0] = *reinterpret_cast<const float4*>(from[f] + i);
          read[f][1] = *reinterpret_cast<const float4*>(from[f] + i + 4);
        }
#pragma unroll
        for (int f = 0; f < 2; ++f) {
          if (i >= widths[f]) continue;
          *reinterpret_cast<uint4*>(to[f] + i) = RoundEight<T>(read[f][0], read[f][1]);
        }
      }
    } else {
      for (int f = 0; f < 2; ++f) {
        for (int i = threadIdx.x; i < widths[f]; i += kThreads) to[f][i] = FromFloat<T>(from[f][i]);
      }
    }
  }
}

template <typename T, int kQueries>
void Launch(Device& device, Problem p, int64_t tokens, int64_t most_blocks) {
  if constexpr (kQueries > 1) {
    const int group = p.heads / p.kv_heads;
    if (group <= kQueries / 2 || kQueries * p.key_dim > kMostQueryFloats) {
      return Launch<T, kQueries / 2>(device, p, tokens, most_blocks);
    }
  }
  const int query_tiles = (p.heads / p.kv_heads + kQueries - 1) / kQueries;
  const int value_tiles = (p.value_dim + kValues - 1) / kValues;
  const int64_t tiles = int64_t{p.kv_heads} * query_tiles * value_tiles;
  const int64_t wanted = int64_t{kBlocksPerMultiprocessor} * device.multiprocessors();
  p.splits = static_cast<int>(std::clamp<int64_t>(wanted / (tokens * tiles), 1,
                                                  std::min<int64_t>(most_blocks, kMostSplits)));
  AllocateParts(device, p, tokens);
  const dim3 grid(static_cast<unsigned>(tokens), static_cast<unsigned>(tiles),
                  static_cast<unsigned>(p.splits));
  const size_t shared = sizeof(float) * kQueries * static_cast<size_t>(p.key_dim);
  Attend<T, kQueries><<<grid, kThreads, shared, device.stream()>>>(p, query_tiles, value_tiles);
  device.Check(cudaGetLastError(), "Attend");
  if (p.splits > 1) CombineParts(device, p, tokens);
}

// The step's keys and values.
template <typename T, bool kEights>
void StoreStep(Device& device, const Problem& p, int64_t tokens) {
  LaunchOverlapping(device, "Store", Store<T, kEights>, static_cast<int>(tokens), kThreads, 0, 1,
                    p);
}

}  // namespace

bool MayStoreFirst(const AttentionArgs& args) {
  const int64_t seen = args.window > 0 ? args.window : args.segment;
  return seen == 0 ||
         (args.longest_row > 0 && args.longest_row <= args.keys.table.positions() - seen + 1);
}

Problem ProblemOf(const AttentionArgs& args) {
  return {.q = args.q.as<const float>(),
          .k = {args.k.as<const float>(), args.other_k.as<const float>()},
          .v = {args.v.as<const float>(), args.other_v.as<const float>()},
          .kinds = args.other_k.empty() ? 1 : 2,
          .row_offsets = args.row_offsets.as<const int32_t>(),
          .slots = args.slots.as<const int32_t>(),
          .positions = args.positions.as<const int64_t>(),
          .rows = static_cast<int>(args.slots.shape[0]),
          .heads = static_cast<int>(args.q.shape[1]),
          .kv_heads = static_cast<int>(args.k.shape[1]),
          .key_dim = static_cast<int>(args.k.shape[2]),
          .value_dim = static_cast<int>(args.v.shape[2]),
          .window = args.window,
          .segment = args.segment,
          .scale = args.scale,
          .keys = {FieldOf(args.keys), FieldOf(args.other_keys)},
          .values = {FieldOf(args.values), FieldOf(args.other_values)},
          .prefix_keys = args.prefix_keys.as<const float>(),
          .prefix_values = args.prefix_values.as<const float>(),
          .prefix = static_cast<int>(args.prefix_keys.empty() ? 0 : args.prefix_keys.shape[0]),
          .out = args.out.as<float>(),
          .rounds = args.out.dtype == DType::kBF16};
}

int64_t MostBlocks(const AttentionArgs& args) {
  const int64_t prefix = args.prefix_keys.empty() ? 0 : args.prefix_keys.shape[0];
  // A window or a segment may touch one block more than it has positions for.
  const int64_t seen = args.window > 0 ? args.window : args.segment;
  const int64_t blocks =
      seen > 0 ? (seen + kContextBlock - 1) / kContextBlock + 1 : args.keys.table.blocks();
  const int kinds = args.other_k.empty() ? 1 : 2;
  return (prefix + kContextBlock - 1) / kContextBlock + kinds * blocks;
}

bool TakesTensorCores(const Device& device, const Problem& p, const AttentionArgs& args) {
  return device.compute_dtype() == DType::kBF16 && args.keys.dtype == DType::kBF16 &&
         std::max(p.key_dim, p.value_dim) <= kMostTensorCoreDim && p.key_dim % 8 == 0 &&
         p.value_dim % 8 == 0 &&
         AreAligned(args.q, args.k, args.v, args.other_k, args.other_v, args.out, args.prefix_keys,
                    args.prefix_values) &&
         (args.longest_row == 1 || HasHopperCode(device));
}

void AllocateParts(Device& device, Problem& p, int64_t tokens) {
  if (p.splits == 1) return;
  const int64_t parts = tokens * p.heads * p.splits;
  p.sums = static_cast<float*>(
      device.Scratch(parts * (p.value_dim + 2) * static_cast<int64_t>(sizeof(float))));
  p.largest = p.sums + parts * p.value_dim;
  p.total = p.largest + parts;
}

void CombineParts(Device& device, const Problem& p, int64_t tokens) {
  LaunchOverlapping(device, "Combine", Combine, static_cast<int>(tokens * p.heads),
                    (p.splits + kSplitsAtOnce - 1) / kSplitsAtOnce * kThreads, 0, 1, p);
}

void Attention(Device& device, const AttentionArgs& args) {
  const int64_t tokens = args.q.shape[0];
  if (tokens == 0) return;
  const Problem p = ProblemOf(args);
  const int64_t most_blocks = MostBlocks(args);
  CHECK(args.keys.dtype == args.values.dtype);
  CHECK(args.out.dtype == DType::kF32 || (p.rounds && args.longest_row == 1)) << "out";
  if (TakesTensorCores(device, p, args)) {
    if (args.longest_row == 1 && TakesOwnHeads(p, most_blocks)) {
      AttendOwnHeads(device, p, tokens, most_blocks);
      return;
    }
    if (args.longest_row == 1) {
      AttendSingleTokens(device, p, tokens, most_blocks);
      return;
    }
    const bool stores_first = MayStoreFirst(args);
    if (stores_first) StoreStep<__nv_bfloat16, true>(device, p, tokens);
    AttendPrompts(device, p, tokens, !stores_first);
    if (!stores_first) StoreStep<__nv_bfloat16, true>(device, p, tokens);
    return;
  }
  if (args.keys.dtype == DType::kBF16) {
    Launch<__nv_bfloat16, kMostQueries>(device, p, tokens, most_blocks);
    StoreStep<__nv_bfloat16, false>(device, p, tokens);
  } else {
    CHECK(args.keys.dtype == DType::kF32);
    Launch<float, kMostQueries>(device, p, tokens, most_blocks);
    StoreStep<float, false>(device, p, tokens);
  }
}

}  // namespace mneme::cuda::attention
