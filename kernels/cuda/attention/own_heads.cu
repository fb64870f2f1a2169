// Attention of a step of single tokens whose heads have keys and values of their own, and that see
// few blocks of positions: a warp takes a head of a token, or, where there are few, the warps of a
// block share it. The token's own keys and values are stored on the way.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/attention/problem.cuh"
#include "kernels/cuda/common/attention_tiles.cuh"
#include "kernels/cuda/common/lane_attention.cuh"
#include "kernels/cuda/common/overlap.cuh"

namespace mneme::cuda::attention {
namespace {

constexpr int kWarpsAlone = 4;  // of a block whose warps have a head each

template <int kLanes, bool kAlone>
__global__ void __launch_bounds__((kAlone ? kWarpsAlone : kMostQueryWarps) * kWarp)
    OwnHeads(const __grid_constant__ Problem p, int pairs) {
  using Lanes = LaneAttention<kLanes>;
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int pair = static_cast<int>(blockIdx.x) * (kAlone ? kWarpsAlone : 1) + (kAlone ? warp : 0);
  if (pair >= pairs) return;
  const int token = pair / p.heads, head = pair % p.heads;
  const int own = lane % kLanes * kLaneColumns, group = lane / kLanes;
  const bool has_key = own < p.key_dim, has_value = own < p.value_dim;
  const int64_t of_key = int64_t{head} * p.key_dim + own;
  const int64_t of_value = int64_t{head} * p.value_dim + own;
  const int64_t own_key = int64_t{token} * p.heads * p.key_dim + of_key;
  const int64_t own_value = int64_t{token} * p.heads * p.value_dim + of_value;
  Lanes attention;
  attention.LoadQuery(p.q + own_key, has_key, p.scale * kLog2E);
  // Mostly, every row has a token: what is the token's row then is on its way at once.
  const int likely = min(token, p.rows - 1);
  int slot = p.slots[likely];
  int64_t position = p.positions[likely];
  if (p.row_offsets[likely] != token || p.row_offsets[likely + 1] <= token) {
    const int row = RowOf(p, token);
    slot = p.slots[row];
    position = p.positions[row];
  }
  if (slot < 0) return;
  const int64_t first = p.First(position);
  const int64_t first_block = first / kContextBlock;
  const int count = static_cast<int>(position - first) + 1;
  const int skipped = static_cast<int>(first - first_block * kContextBlock);
  const Field &keys = p.keys[0], &values = p.values[0];
  // Where the lane-th block of those seen lies.
  int64_t block = 0;
  if (first_block + lane <= position / kContextBlock) {
    const auto blocks = static_cast<int>(keys.blocks);
    const int place = static_cast<int>(first_block % blocks) + lane;
    block = keys.offsets[int64_t{slot} * blocks + place % blocks];
  }

  const int warps = kAlone ? 1 : static_cast<int>(blockDim.x) / kWarp;
  for (int base = (kAlone ? 0 : warp) * Lanes::kKeys; base < count; base += warps * Lanes::kKeys) {
    uint4 k[Lanes::kAhead] = {}, v[Lanes::kAhead] = {};
#pragma unroll
    for (int a = 0; a < Lanes::kAhead; ++a) {
      const int j = base + a * Lanes::kGroups + group, place = skipped + j;
      const int64_t at = __shfl_sync(kAllLanes, block, min(place / kContextBlock, kWarp - 1));
      if (j >= count) continue;
      std::byte* const rows = const_cast<std::byte*>(keys.base) + at;
      auto* const key = reinterpret_cast<uint4*>(
          rows + keys.offset + place % kContextBlock * keys.row_bytes + of_key * 2);
      auto* const value = reinterpret_cast<uint4*>(
          rows + values.offset + place % kContextBlock * values.row_bytes + of_value * 2);
      if (j < count - 1) {
        if (has_key) k[a] = *key;
        if (has_value) v[a] = *value;
        continue;
      }
      // The token's own, rounded as they are kept.
      if (has_key) {
        k[a] =
            RoundEight<__nv_bfloat16>(LoadFour(p.k[0] + own_key), LoadFour(p.k[0] + own_key + 4));
        *key = k[a];
      }
      if (has_value) {
        v[a] = RoundEight<__nv_bfloat16>(LoadFour(p.v[0] + own_value),
                                         LoadFour(p.v[0] + own_value + 4));
        *value = v[a];
      }
    }
    const int left = count - base - group;  // keys of the group: every kGroups-th
    float scores[Lanes::kAhead];
    attention.Take(k, v, (left + Lanes::kGroups - 1) / Lanes::kGroups, scores);
  }
  const int64_t at = own_value - own;
  if constexpr (kAlone) {
    attention.Finish(p.output(), at, p.value_dim);
  } else {
    __shared__ QueryParts<kLanes> parts;
    attention.FinishBlock(&parts, p.output(), at, p.value_dim);
  }
}

template <int kLanes>
void Launch(Device& device, const Problem& p, int64_t tokens, int64_t most_blocks) {
  const int pairs = static_cast<int>(tokens * p.heads);
  // As many warps as run at a time, each with keys enough to be worth its start.
  constexpr int kWarpsAtOnce = 16, kKeys = LaneAttention<kLanes>::kKeys;
  int warps = 1;
  while (warps < kMostQueryWarps && 2 * warps * pairs <= kWarpsAtOnce * device.multiprocessors() &&
         warps * kKeys < most_blocks * kContextBlock) {
    warps *= 2;
  }
  if (warps == 1) {
    LaunchOverlapping(device, "OwnHeads", OwnHeads<kLanes, true>,
                      (pairs + kWarpsAlone - 1) / kWarpsAlone, kWarpsAlone * kWarp, 0, 1, p, pairs);
  } else {
    LaunchOverlapping(device, "OwnHeads", OwnHeads<kLanes, false>, pairs, warps * kWarp, 0, 1, p,
                      pairs);
  }
}

}  // namespace

bool TakesOwnHeads(const Problem& p, int64_t most_blocks) {
  return p.heads == p.kv_heads && p.kinds == 1 && p.prefix == 0 && p.window == 0 &&
         most_blocks <= kMostOwnBlocks;
}

void AttendOwnHeads(Device& device, const Problem& p, int64_t tokens, int64_t most_blocks) {
  const bool wide = std::max(p.key_dim, p.value_dim) > 64;
  (wide ? Launch<16> : Launch<8>)(device, p, tokens, most_blocks);
}

}  // namespace mneme::cuda::attention
