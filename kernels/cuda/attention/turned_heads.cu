// TurnedAttention: of single tokens whose heads have keys and values of their own, and that see few
// blocks of positions, by one kernel, in which a warp, or the warps of a block, take a head of a
// token, as in own_heads.cu. A token that follows a few others of its row makes their keys and
// values for itself, as they are on their way to the context. Beside rows of many tokens, if they
// are few, a kernel in front of it turns queries and stores the step's keys and values. Else
// queries, keys and values are made by a kernel in front of Attention().
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/problem.cuh"
#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/common/attention_tiles.cuh"
#include "kernels/cuda/common/blocks.h"
#include "kernels/cuda/common/lane_attention.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/rope.cuh"

namespace mneme::cuda::attention {
namespace {

constexpr int kWarpsAlone = 4;  // of a block whose warps have a head each
constexpr int kMostFresh = 16;  // tokens of a row, of which each makes the keys of those before it
// Bytes asked for ahead have to find room in the L2 cache beside what others ask for.
constexpr int64_t kMostAhead = int64_t{24} << 20;
constexpr int kLeastAhead = 32;  // keys

// What is to be done to q, k and v of a token.
struct Turn {
  const int64_t* positions;
  const float* frequencies;
  bool in_two;
  int64_t period;
  const float *first, *gate, *bias;  // of v; or null
  int heads;                         // whose channels share a gate, or all
  int half;
  bool settled;
  bool done;  // of q, and keys and values of the step are where they are kept
  int ahead;  // keys of a token that are asked for before the kernel ahead has ended, if settled

  // Sine and cosine of pair j of a head of a token.
  __device__ void Angle(int64_t position, int j, float* sin, float* cos) const {
    const double frequency =
        in_two ? double{frequencies[j]} + frequencies[half + j] : double{frequencies[j]};
    if (period > 0) position %= period;
    SinCosOfAngle(position, frequency, sin, cos);
  }
  // How much of `first` becomes part of a head's values.
  __device__ float Mix(int64_t token, int head) const {
    return Sigmoid(gate[token * heads + head] + bias[head]);
  }
};

__device__ inline float2 Turned(const float2& x, float sin, float cos) {
  return {x.x * cos - x.y * sin, x.y * cos + x.x * sin};
}

// Sines and cosines of the pairs that a lane has of a head.
struct Angles {
  static constexpr int kPairs = kLaneColumns / 2;
  float sin[kPairs], cos[kPairs];

  __device__ void Find(const Turn& turn, int64_t position, int pair) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) turn.Angle(position, pair + i, &sin[i], &cos[i]);
  }
};

// The numbers that a lane has of a head.
struct Eight {
  float at[kLaneColumns];

  __device__ void Load(const float* from) {
    const float4 low = LoadFour(from), high = LoadFour(from + 4);
    const float values[] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) at[i] = values[i];
  }
  __device__ void Rotate(const Angles& angles) {
#pragma unroll
    for (int i = 0; i < Angles::kPairs; ++i) {
      const float2 turned = Turned({at[2 * i], at[2 * i + 1]}, angles.sin[i], angles.cos[i]);
      at[2 * i] = turned.x, at[2 * i + 1] = turned.y;
    }
  }
  __device__ void Add(const Eight& first, float mix) {
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) at[i] = fmaf(first.at[i] - at[i], mix, at[i]);
  }
  __device__ uint4 Rounded() const {
    return RoundEight<__nv_bfloat16>(float4{at[0], at[1], at[2], at[3]},
                                     float4{at[4], at[5], at[6], at[7]});
  }
};

// The last row that begins at `token` or before it. By whole warps, all of one token.
__device__ inline int RowOfWarp(const Problem& p, int token) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int low = 0, high = p.rows;
  while (high - low > 1) {
    const int step = (high - low + kWarp - 1) / kWarp, probe = low + lane * step;
    const bool begins = probe < high && p.row_offsets[probe] <= token;
    low += (__popc(__ballot_sync(kAllLanes, begins)) - 1) * step;
    high = min(high, low + step);
  }
  return low;
}

template <int kLanes, bool kAlone>
__global__ void __launch_bounds__((kAlone ? kWarpsAlone : kMostQueryWarps) * kWarp, kAlone ? 5 : 1)
    TurnedHeads(const __grid_constant__ Problem p, const __grid_constant__ Turn turn, int pairs) {
  using Lanes = LaneAttention<kLanes>;
  LetNextKernelStart();
  if (!turn.settled) WaitForPreviousKernel();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int pair = static_cast<int>(blockIdx.x) * (kAlone ? kWarpsAlone : 1) + (kAlone ? warp : 0);
  if (pair >= pairs) return WaitForPreviousKernel();
  const int token = pair / p.heads, head = pair % p.heads;
  const int own = lane % kLanes * kLaneColumns, group = lane / kLanes;
  const bool has_columns = own < p.key_dim;
  const int dim = p.key_dim;
  const int64_t of_head = int64_t{head} * dim + own;
  const int64_t of_token = int64_t{token} * p.heads * dim + of_head;
  // Loads begin at once from the row that is the token's if every row has one.
  int row = min(token, p.rows - 1), row_token = p.row_offsets[row], slot = p.slots[row];
  int64_t row_begin = p.positions[row];
  if (row_token != token || p.row_offsets[row + 1] <= token) {
    row = RowOfWarp(p, token);
    row_token = p.row_offsets[row], slot = p.slots[row], row_begin = p.positions[row];
  }
  const int64_t position = row_begin + token - row_token;
  if (slot < 0) return WaitForPreviousKernel();
  const int64_t begin = p.First(position), first_block = begin / kContextBlock;
  const int seen = static_cast<int>(position - begin) + 1;
  // Those of the row's tokens in the step, its own among them, are not read.
  const int fresh = turn.done ? 0 : min(token - row_token + 1, seen), count = seen - fresh;
  const int skipped = static_cast<int>(begin - first_block * kContextBlock);
  const Field &keys = p.keys[0], &values = p.values[0];
  // Where the lane-th block of those seen lies.
  int64_t block = 0;
  if (first_block + lane <= position / kContextBlock) {
    const auto blocks = static_cast<int>(keys.blocks);
    const int place = static_cast<int>(first_block % blocks) + lane;
    block = keys.offsets[int64_t{slot} * blocks + place % blocks];
  }
  const int warps = kAlone ? 1 : static_cast<int>(blockDim.x) / kWarp;
  const int of_warp = kAlone ? 0 : warp;
  // The lane's columns of a place's key and value.
  struct Pair {
    uint4 *key, *value;
  };
  const auto pair_at = [&](int place) {
    std::byte* const rows = const_cast<std::byte*>(keys.base) +
                            __shfl_sync(kAllLanes, block, min(place / kContextBlock, kWarp - 1)) +
                            of_head * 2;
    const int in_block = place % kContextBlock;
    return Pair{reinterpret_cast<uint4*>(rows + keys.offset + in_block * keys.row_bytes),
                reinterpret_cast<uint4*>(rows + values.offset + in_block * values.row_bytes)};
  };
  struct Rows {
    uint4 key[Lanes::kAhead], value[Lanes::kAhead];
  };
  // Those of the context from `base` on, past the cache of the multiprocessor, which may hold what
  // they were.
  const auto load = [&](int base, Rows& rows) {
    rows = {};
#pragma unroll
    for (int a = 0; a < Lanes::kAhead; ++a) {
      const int j = base + a * Lanes::kGroups + group;
      const Pair from = pair_at(skipped + j);
      if (j >= count || !has_columns) continue;
      rows.key[a] = __ldcg(from.key);
      rows.value[a] = __ldcg(from.value);
    }
  };
  const auto load_prefix = [&](const float* from, int j) {
    Eight of_row = {};
    if (j < p.prefix && has_columns) of_row.Load(from + int64_t{j} * p.heads * dim + of_head);
    return of_row.Rounded();
  };
  // The prefix, the token's angles and the context are known before the kernel ahead has ended, so
  // they are loaded while it runs: the context's first rows to registers where a block's warps
  // share it, the rest to the L2 cache.
  const int first_own = of_warp * Lanes::kGroups, first_key = of_warp * Lanes::kKeys;
  uint4 prefix_key = load_prefix(p.prefix_keys, first_own + group);
  uint4 prefix_value = load_prefix(p.prefix_values, first_own + group);
  Angles angles = {};
  Rows rows;
  if (turn.settled) {
    const auto prefetch = [](const std::byte* from) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
    };
    const int64_t in_row = int64_t{head} * dim * 2;
    const int ahead = min(count, turn.ahead);
    const int loaded = kAlone ? 0 : warps * Lanes::kKeys;
#pragma unroll 1
    for (int base = loaded + of_warp * kWarp; base < ahead; base += warps * kWarp) {
      const int place = skipped + base + lane;
      const int64_t at = __shfl_sync(kAllLanes, block, min(place / kContextBlock, kWarp - 1));
      if (base + lane >= ahead) continue;
      const std::byte* const of_place = keys.base + at + in_row;
      prefetch(of_place + keys.offset + place % kContextBlock * keys.row_bytes);
      prefetch(of_place + values.offset + place % kContextBlock * values.row_bytes);
    }
  }
  if (!kAlone) load(first_key, rows);
  if (has_columns && !turn.done) angles.Find(turn, turn.positions[token], own / 2);
  if (turn.settled) WaitForPreviousKernel();

  // A key and value of the step's own that this group makes.
  struct Made {
    Eight k, v, first;
    float mix;
  };
  const auto load_own = [&](int j) {
    Made made = {};
    if (j >= fresh || !has_columns) return made;
    const int of = token + 1 - fresh + j;
    const int64_t at = int64_t{of} * p.heads * dim + of_head;
    made.k.Load(p.k[0] + at);
    made.v.Load(p.v[0] + at);
    if (turn.first != nullptr) {
      made.first.Load(turn.first + at);
      made.mix = turn.Mix(of, head);
    }
    return made;
  };
  Eight q = {};
  if (has_columns) q.Load(p.q + of_token);
  Made made = load_own(first_own + group);
  if (!turn.done) q.Rotate(angles);
  Lanes attention;
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) attention.query[i] = p.scale * kLog2E * q.at[i];

    // The prefix, whose rows are f32, and the step's own tokens, of each a row a group.
#pragma unroll 1
  for (int base = first_own; base < max(p.prefix, fresh); base += warps * Lanes::kGroups) {
    const int j = base + group;
    if (base != first_own) {
      prefix_key = load_prefix(p.prefix_keys, j);
      prefix_value = load_prefix(p.prefix_values, j);
      made = load_own(j);
    }
    uint4 key[Lanes::kAhead] = {prefix_key}, value[Lanes::kAhead] = {prefix_value};
    int found = j < p.prefix ? 1 : 0;
    const Pair to = pair_at(skipped + count + j);
    if (j < fresh) {
      const int of = token + 1 - fresh + j;
      Angles of_key = angles;
      if (of != token && has_columns) of_key.Find(turn, turn.positions[of], own / 2);
      made.k.Rotate(of_key);
      if (turn.first != nullptr) made.v.Add(made.first, made.mix);
      const uint4 own_key = made.k.Rounded(), own_value = made.v.Rounded();
      if (of == token && has_columns) *to.key = own_key, *to.value = own_value;
      key[1] = own_key, value[1] = own_value;
      if (found == 0) key[0] = own_key, value[0] = own_value;
      ++found;
    }
    float scores[Lanes::kAhead];
    attention.Take(key, value, found, scores);
  }
#pragma unroll 1
  for (int base = first_key; base < count; base += warps * Lanes::kKeys) {
    if (kAlone || base != first_key) load(base, rows);
    float scores[Lanes::kAhead];
    attention.Take(rows.key, rows.value,
                   (count - base - group + Lanes::kGroups - 1) / Lanes::kGroups, scores);
  }
  const int64_t at = of_token - own;
  if constexpr (kAlone) {
    attention.Finish(p.output(), at, dim);
  } else {
    __shared__ QueryParts<kLanes> parts;
    attention.FinishBlock(&parts, p.output(), at, dim);
  }
}

template <int kLanes>
void LaunchHeads(Device& device, const Problem& p, const Turn& turn, int64_t tokens,
                 int64_t most_keys) {
  const int pairs = static_cast<int>(tokens * p.heads);
  // As many warps as run at a time, each with keys enough to be worth its start.
  constexpr int kWarpsAtOnce = 16, kKeys = LaneAttention<kLanes>::kKeys;
  int warps = 1;
  while (warps < kMostQueryWarps && 2 * warps * pairs <= kWarpsAtOnce * device.multiprocessors() &&
         warps * kKeys < most_keys) {
    warps *= 2;
  }
  if (warps == 1) {
    LaunchOverlapping(device, "TurnedHeads", TurnedHeads<kLanes, true>,
                      (pairs + kWarpsAlone - 1) / kWarpsAlone, kWarpsAlone * kWarp, 0, 1, p, turn,
                      pairs);
  } else {
    LaunchOverlapping(device, "TurnedHeads", TurnedHeads<kLanes, false>, pairs, warps * kWarp, 0, 1,
                      p, turn, pairs);
  }
}

constexpr int kThreads = 128;

// A thread takes four elements of q, k and v of a token. kStores: keys and values go to their rows,
// not back, unless a later token of the step has the same ones.
template <bool kStores>
__global__ void __launch_bounds__(kThreads)
    TurnKernel(const __grid_constant__ Problem p, const __grid_constant__ Turn turn, float* q,
               float* k, float* v, int64_t fours, int of_token) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t item = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (item >= fours) return;
  const int64_t token = item / of_token;
  const int in_token = static_cast<int>(item - token * of_token) * 4;
  const int dim = 2 * turn.half, head = in_token / dim, pair = in_token % dim / 2;
  const int64_t position = turn.positions[token];
  float sin[2], cos[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) turn.Angle(position, pair + i, &sin[i], &cos[i]);
  const auto turned = [&](const float* x) {
    const float4 old = LoadFour(x + 4 * item);
    const float2 low = Turned({old.x, old.y}, sin[0], cos[0]);
    const float2 high = Turned({old.z, old.w}, sin[1], cos[1]);
    return float4{low.x, low.y, high.x, high.y};
  };
  SaveFour(q + 4 * item, turned(q));
  const float4 key = turned(k);
  float4 value = {};
  if (kStores || turn.first != nullptr) value = LoadFour(v + 4 * item);
  if (turn.first != nullptr) {
    const float mix = turn.Mix(token, head);
    const float4 x = value, first = LoadFour(turn.first + 4 * item);
    value = {fmaf(first.x - x.x, mix, x.x), fmaf(first.y - x.y, mix, x.y),
             fmaf(first.z - x.z, mix, x.z), fmaf(first.w - x.w, mix, x.w)};
  }
  if constexpr (kStores) {
    const int row = RowOf(p, static_cast<int>(token)), slot = p.slots[row];
    const int64_t at = p.positions[row] + token - p.row_offsets[row];
    const int64_t end = p.positions[row] + p.row_offsets[row + 1] - p.row_offsets[row];
    if (slot < 0 || at < end - p.keys[0].blocks * kContextBlock) return;
    const auto store = [&](const Field& field, const float4& four) {
      std::byte* const to =
          field.Block(slot, at / kContextBlock) + at % kContextBlock * field.row_bytes;
      SaveFour(reinterpret_cast<__nv_bfloat16*>(to) + in_token, four);
    };
    store(p.keys[0], key);
    store(p.values[0], value);
  } else {
    SaveFour(k + 4 * item, key);
    if (turn.first != nullptr) SaveFour(v + 4 * item, value);
  }
}

// Whether most rows have one token, so that others are as well taken token by token.
bool HasShortRows(const AttentionArgs& args) {
  constexpr int64_t kMostTokens = 2;  // of a row, on average
  return args.q.shape[0] <= kMostTokens * args.slots.shape[0] && MayStoreFirst(args);
}

}  // namespace

bool TurnedAttention(Device& device, const TurnedAttentionArgs& args) {
  const AttentionArgs& attention = args.attention;
  const ValueResidualArgs& mix = args.mix;
  const int64_t tokens = attention.q.shape[0], heads = attention.q.shape[1],
                dim = attention.q.shape[2];
  if (tokens == 0 || !args.rope.interleaved || dim % kLaneColumns != 0 ||
      attention.k.shape != attention.q.shape || attention.v.shape != attention.q.shape ||
      !attention.other_k.empty() || (!mix.v.empty() && mix.gate.shape[1] != heads) ||
      !AreAligned(attention.q, attention.k, attention.v, mix.first)) {
    return false;
  }
  Turn turn = {.positions = args.rope.positions.as<const int64_t>(),
               .frequencies = args.rope.frequencies.as<const float>(),
               .in_two = args.rope.frequencies.shape.rank == 2,
               .period = args.rope.period,
               .first = mix.v.empty() ? nullptr : mix.first.as<const float>(),
               .gate = mix.gate.as<const float>(),
               .bias = mix.bias.as<const float>(),
               .heads = static_cast<int>(heads),
               .half = static_cast<int>(dim / 2),
               .settled = args.settled,
               .done = false,
               .ahead = static_cast<int>(
                   std::max<int64_t>(kMostAhead / (tokens * heads * dim * 4), kLeastAhead))};
  const Problem p = ProblemOf(attention);
  const int64_t most_blocks = MostBlocks(attention) - p.prefix_blocks();
  const bool single = attention.longest_row == 1;
  const bool by_heads = most_blocks <= kMostOwnBlocks && TakesTensorCores(device, p, attention) &&
                        (single || HasShortRows(attention));
  // Steps of single tokens have a kernel for what is rounded, others only this one.
  if (!single && !by_heads && attention.out.dtype != DType::kF32) return false;
  const bool makes_own =
      by_heads && attention.longest_row > 0 && attention.longest_row <= kMostFresh;
  if (!makes_own) {
    const int64_t fours = tokens * heads * dim / 4;
    LaunchOverlapping(device, "Turn", by_heads ? TurnKernel<true> : TurnKernel<false>,
                      BlocksFor(fours, kThreads), kThreads, 0, 1, p, turn, attention.q.as<float>(),
                      attention.k.as<float>(), attention.v.as<float>(), fours,
                      static_cast<int>(heads * dim / 4));
    if (!by_heads) {
      Attention(device, attention);
      return true;
    }
    turn.done = true;
  }
  const int64_t most_keys = p.window > 0 ? p.window : p.segment;
  const int64_t keys = most_keys > 0 ? most_keys : most_blocks * kContextBlock;
  (dim > 64 ? LaunchHeads<16> : LaunchHeads<8>)(device, p, turn, tokens, keys);
  return true;
}

}  // namespace mneme::cuda::attention
