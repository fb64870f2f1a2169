// What the warpgroups that multiply do with a tile of a prompt's queries: scores, weights, sums.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/attention/prompt_tiles.cuh"
#include "kernels/cuda/common/exponentials.cuh"
#include "kernels/cuda/common/wgmma.cuh"

namespace mneme::cuda::attention {

constexpr int kMultipliers = 2;  // warpgroups
constexpr int kQueries = kMultipliers * 64;

template <int kDim>
struct Shape {
  static constexpr int kStages = kDim == 128 ? 3 : 4;
  static constexpr int kStageBytes = kDim / 64 * kStepGroupBytes;
  static constexpr int kSharedBytes = 2 * kStages * kStageBytes + 1024;  // to align them in
};

// A number that is the same in all lanes, so that the compiler knows.
__device__ inline int Uniform(int x) { return __shfl_sync(kAllLanes, x, 0); }

// Each of the warpgroups that multiply waits for its turn, and gives the other one its.
__device__ inline void AwaitTurn(int multiplier) {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + multiplier), "n"(kMultipliers * 128) : "memory");
}
__device__ inline void GiveTurn(int multiplier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(1 + multiplier), "n"(kMultipliers * 128) : "memory");
}

// Rows that a query sees, as those of a Block are counted.
struct SeenRows {
  int from, to;
  __device__ SeenRows(const Tile& tile, const Query& query)
      : from(query.exists ? static_cast<int>(query.from - tile.first_block * kContextBlock) : 0),
        to(query.exists ? static_cast<int>(query.to - tile.first_block * kContextBlock) : 0) {}
};

// Rows that all queries of a tile see.
struct SeenByAll {
  int from, to;
  __device__ SeenByAll(const Problem& p, const Tile& tile)
      : from(Uniform(static_cast<int>(p.First(tile.PositionOf(tile.token + tile.tokens - 1)) -
                                      tile.first_block * kContextBlock))),
        to(Uniform(static_cast<int>(tile.PositionOf(tile.token) + 1 -
                                    tile.first_block * kContextBlock))) {}
  __device__ bool Has(const Problem& p, const Block& b) const {
    return b.fixed ? b.begin + kContextBlock <= p.prefix
                   : b.begin >= from && b.begin + kContextBlock <= to;
  }
};

// Scores of a step's keys that a query does not see become minus infinity.
__device__ inline void HideUnseen(const Problem& p, int step, const SeenByAll& by_all,
                                  const SeenRows (&seen)[2], float (&scores)[kStepKeys / 8][4]) {
  bool all = true;
#pragma unroll
  for (int i = 0; i < kStepBlocks; ++i)
    all = all && by_all.Has(p, Block(p, step * kStepBlocks + i));
  if (all) return;
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < kStepBlocks; ++i) {
    const Block b(p, step * kStepBlocks + i);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int from = b.fixed ? 0 : seen[r].from, to = b.fixed ? p.prefix : seen[r].to;
#pragma unroll
      for (int t = 0; t < kContextBlock / 8; ++t) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int j = b.begin + t * 8 + 2 * (lane % 4) + e;
          if (j < from || j >= to) scores[i * kContextBlock / 8 + t][2 * r + e] = -INFINITY;
        }
      }
    }
  }
}

// Weights of a thread's two queries, powers of two of scores above the largest so far, and their
// totals.
struct Weights {
  float largest[2] = {-INFINITY, -INFINITY}, total[2] = {};

  // Turns scores into weights. `scale` includes log2(e); `factors` bring what was summed before to
  // the new largest score.
  __device__ void Weigh(float scale, float (&scores)[kStepKeys / 8][4], float (&factors)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = scores[0][2 * r];
#pragma unroll
      for (int t = 0; t < kStepKeys / 8; ++t) {
        most = fmaxf(most, fmaxf(scores[t][2 * r], scores[t][2 * r + 1]));
      }
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
      const float now = fmaxf(largest[r], scale * most);
      const float from = now == -INFINITY ? 0.0f : now;
      factors[r] = Exp2(largest[r] - from);
      largest[r] = now;
      float sums[2] = {};
#pragma unroll
      for (int t = 0; t < kStepKeys / 8; ++t) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& score = scores[t][2 * r + e];
          score = Exp2(fmaf(scale, score, -from));
          sums[e] += score;
        }
      }
      total[r] = fmaf(total[r], factors[r], sums[0] + sums[1]);
    }
  }
  // Totals of whole queries, once at the end.
  __device__ void Finish() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      total[r] += __shfl_xor_sync(kAllLanes, total[r], 1);
      total[r] += __shfl_xor_sync(kAllLanes, total[r], 2);
    }
  }
};

// A warpgroup that multiplies, in the rings as it has read them so far.
template <int kDim>
struct Multiplier {
  using S = Shape<kDim>;
  Ring<S::kStages>&key_ring, &value_ring;
  uint32_t keys, values;  // where the rings begin
  int index;
  RingPlace<S::kStages> key_place, value_place;

  __device__ void AttendTile(const Problem& p, const Tile& tile) {
    const int lane = threadIdx.x % kWarp, warp = (threadIdx.x - kFetchers) / kWarp;
    const int steps = Uniform((tile.blocks + kStepBlocks - 1) / kStepBlocks);
    const float scale = p.scale * kLog2E;
    const SeenByAll by_all(p, tile);
    uint32_t q[kDim / 16][4];
    const auto query = [&](int i) { return Query(p, tile, warp * 16 + lane / 4 + 8 * i); };
    LoadQueries<kDim>(p, {query(0), query(1)}, q);
    const SeenRows seen[2] = {SeenRows(tile, query(0)), SeenRows(tile, query(1))};

    float out[kDim / 8][4], scores[kStepKeys / 8][4];
    uint32_t rounded[kStepKeys / 16][4];
    Weights weights;
    const auto multiply_keys = [&] {
      Await(key_ring, key_place);
      const uint64_t b = DescribeMatrix(keys + key_place.at * S::kStageBytes);
      BeginProducts();
#pragma unroll
      for (int i = 0; i < kDim / 16; ++i) {
        MultiplyRows(scores, q[i], b + i / 4 * (kStepGroupBytes >> 4) + i % 4 * kSixteenColumns,
                     i > 0);
      }
      CommitProducts();
    };
    const auto multiply_values = [&](bool adds) {
      Await(value_ring, value_place);
      const uint64_t b = DescribeColumns(values + value_place.at * S::kStageBytes, kStepGroupBytes);
      BeginProducts();
#pragma unroll
      for (int i = 0; i < kStepKeys / 16; ++i) {
        MultiplyColumns(out, rounded[i], b + i * kSixteenRows, adds || i > 0);
      }
      CommitProducts();
    };
    const auto round_weights = [&] {
#pragma unroll
      for (int i = 0; i < kStepKeys / 16; ++i) RoundWeights(scores, i, rounded[i]);
    };

    float factors[2];
    multiply_keys();
    WaitProducts<0>();
    Release(key_ring, key_place);
    HideUnseen(p, 0, by_all, seen, scores);
    weights.Weigh(scale, scores, factors);
    round_weights();
    for (int step = 1; step < steps; ++step) {
      AwaitTurn(index);
      multiply_keys();
      multiply_values(step > 1);
      GiveTurn(index ^ 1);
      WaitProducts<1>();
      Release(key_ring, key_place);
      HideUnseen(p, step, by_all, seen, scores);
      weights.Weigh(scale, scores, factors);
      // The compiler moves this up in front of the exponentials. A branch keeps them beside the
      // last products, and makes the whole slower.
      WaitProducts<0>();
      Release(value_ring, value_place);
#pragma unroll
      for (int t = 0; t < kDim / 8; ++t) {
#pragma unroll
        for (int e = 0; e < 4; ++e) out[t][e] *= factors[e / 2];
      }
      round_weights();
    }
    multiply_values(steps > 1);
    WaitProducts<0>();
    Release(value_ring, value_place);

    weights.Finish();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Query of = query(i);
      if (!of.exists) continue;
      const float by = 1.0f / weights.total[i];
      float* const to = OutOf(p, of.token, of.head, 0);
#pragma unroll
      for (int t = 0; t < kDim / 8; ++t) {
        const int column = t * 8 + 2 * (lane % 4);
        if (column >= p.value_dim) continue;
        *reinterpret_cast<float2*>(to + column) = {by * out[t][2 * i], by * out[t][2 * i + 1]};
      }
    }
  }

 private:
  __device__ static void Await(Ring<S::kStages>& ring, const RingPlace<S::kStages>& place) {
    BulkWait(&ring.full[place.at], place.phase);
    PublishToProducts();
  }
  // By each warp, once its products have read the stage.
  __device__ static void Release(Ring<S::kStages>& ring, RingPlace<S::kStages>& place) {
    if (threadIdx.x % kWarp == 0) Arrive(&ring.empty[place.at]);
    place.Next();
  }
};

}  // namespace mneme::cuda::attention
