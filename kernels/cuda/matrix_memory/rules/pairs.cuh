// A token through rows of 64 elements by the general correction. A warp takes two rows at a time, a
// lane four elements of one of them, so that a row's sums go through half of a warp. They are those
// of rules/token.cuh bit for bit.
//
// The larger a warp's part of a matrix, the less is read beside it: what all rows are multiplied by
// does not stay in the cache of the multiprocessor, which kernels that overlap keep small. So rows
// come by way of shared memory and are taken in rounds, as many as registers hold.
#pragma once

#include <type_traits>

#include "kernels/cuda/common/async_copy.cuh"
#include "kernels/cuda/matrix_memory/rules/rules.h"
#include "kernels/cuda/matrix_memory/rules/token.cuh"

namespace mneme::cuda::matrix_memory::rules {

constexpr int kPairKeys = 64, kHalfWarp = kWarp / 2;

// SumRows() over the half of the warp that a lane is in.
template <int kCount, int kMask = 1>
__device__ inline float SumHalf(const float (&x)[kCount]) {
  if constexpr (kCount == 1) {
    float sum = x[0];
#pragma unroll
    for (int mask = kMask; mask < kHalfWarp; mask *= 2) {
      sum += __shfl_xor_sync(kAllLanes, sum, mask);
    }
    return sum;
  } else {
    const bool odd = (threadIdx.x & kMask) != 0;
    float half[kCount / 2];
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      const float keep = odd ? x[2 * i + 1] : x[2 * i];
      const float give = odd ? x[2 * i] : x[2 * i + 1];
      half[i] = keep + __shfl_xor_sync(kAllLanes, give, kMask);
    }
    return SumHalf<kCount / 2, 2 * kMask>(half);
  }
}

// The sum that two neighbouring lanes of rules/token.cuh have between them.
__device__ inline float DotFour(const float (&x)[4], const float (&y)[4]) {
  const float low = __fmaf_rn(x[1], y[1], __fmul_rn(x[0], y[0]));
  const float high = __fmaf_rn(x[3], y[3], __fmul_rn(x[2], y[2]));
  return __fadd_rn(low, high);
}

// The vectors that all rows of a head are multiplied by, a lane's part: from any memory.
struct PairToken {
  __device__ static void Load(const float* from, float (&to)[4]) {
    const float4 x = reinterpret_cast<const float4*>(from)[threadIdx.x % kHalfWarp];
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
  }
  __device__ void Finish() {
#pragma unroll
    for (float& d : decays) d = expf(d);
    const float dot[1] = {DotFour(e, q)};
    e_dot_q = SumHalf(dot);
  }

  float k[4], q[4], decays[4], c[4], e[4];
  float e_dot_q;
};

// 2 kPairs rows of a matrix at a time, kRounds times, of a warp.
template <typename T, int kPairs, int kRounds>
struct PairRows {
  static constexpr int kRows = 2 * kPairs, kAllRows = kRounds * kRows;
  struct alignas(16) Copy {
    T rows[kRounds][kRows][kPairKeys];
  };

  // Starts to copy them.
  __device__ PairRows(const Problem& p, const Piece& piece, int first_row, Copy& copy)
      : row(first_row + 2 * (static_cast<int>(threadIdx.x) % kHalfWarp % kPairs) +
            static_cast<int>(threadIdx.x) % kWarp / kHalfWarp),
        fresh_(piece.fresh),
        state_(p.state.At<T>(piece.slot, piece.memory) +
               (int64_t{piece.head} * p.value_dim + first_row) * kPairKeys),
        copy_(copy) {
    constexpr int kEach = 16 / sizeof(T), kCopies = kRows * kPairKeys / kEach / kWarp;
    if (fresh_) return;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const int at = (i * kWarp + static_cast<int>(threadIdx.x) % kWarp) * kEach;
        CopyAsync16(&copy.rows[round][0][0] + at, state_ + round * kRows * kPairKeys + at);
      }
      CommitCopies();
    }
  }
  // Takes the rows of a round through a token and stores them. Returns the output of
  // row + round * kRows, not scaled; this lane has v of that row.
  template <int kRound>
  __device__ float Take(const PairToken& token, float own_v) {
    // Two rows of 64 are one of 128 (row.cuh): a lane has four elements, half of the warp a row.
    constexpr int kTwo = 2 * kPairKeys;
    WaitCopies<kRounds - 1 - kRound>();
    __syncwarp();
    T* const state = state_ + kRound * kRows * kPairKeys;
    const int first_lane = threadIdx.x % kWarp / kHalfWarp * kHalfWarp;
    float s[kPairs][4], recalls[kPairs], reads[kPairs];
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
#pragma unroll
      for (float& x : s[j]) x = 0;
      if (!fresh_) LoadRow<kTwo>(copy_.rows[kRound][2 * j], s[j]);
      recalls[j] = DotFour(s[j], token.c);
      const float v = __shfl_sync(kAllLanes, own_v, first_lane + j);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[j][i] = __fmaf_rn(v, token.k[i], __fmul_rn(token.decays[i], s[j][i]));
      }
      reads[j] = DotFour(s[j], token.q);
    }
    const float recall = SumHalf(recalls), read = SumHalf(reads);
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const float write = __shfl_sync(kAllLanes, recall, first_lane + j);
#pragma unroll
      for (int i = 0; i < 4; ++i) s[j][i] = __fmaf_rn(write, token.e[i], s[j][i]);
      StoreRow<kTwo>(state + j * kTwo, s[j]);
    }
    return __fmaf_rn(recall, token.e_dot_q, read);
  }
  // Calls use(round as a constant) for all.
  template <typename Use, int kRound = 0>
  __device__ static void ForRounds(const Use& use) {
    if constexpr (kRound < kRounds) {
      use(std::integral_constant<int, kRound>());
      ForRounds<Use, kRound + 1>(use);
    }
  }
  // Whether this lane is the one that answers for its rows.
  __device__ static bool Finishes() { return threadIdx.x % kHalfWarp < kPairs; }

  const int row;  // of the first round

 private:
  const bool fresh_;
  T* const state_;
  const Copy& copy_;
};

// How the rows of a head are dealt out, by its warps' pairs and rounds: see PairsOf().
template <int kPairs_, int kRounds_>
struct PairShape {
  static constexpr int kPairs = kPairs_, kRounds = kRounds_;
  static constexpr int kWarps = kPairKeys / (2 * kPairs * kRounds);  // of 64 rows
  // Blocks of a multiprocessor that registers are to allow.
  static constexpr int kMultiprocessorBlocks = kPairs == 4 ? 4 : 6 * kRounds;
};

// Calls launch(a PairShape) for a number of rows that suits `tile`. From measurements on an H200,
// f32, us at 3, 12, 100 and 400 MB: 3.4, 9.2, 56.0 and 231 with the first, 4.8, 8.2, 55.9 and 219
// with the second, 3.9, 9.3, 56.1 and 213 with the third.
template <typename Launch>
void WithPairShape(Tile tile, const Launch& launch) {
  switch (tile) {
    case Tile::kFewestRows:
      return launch(PairShape<4, 1>());
    case Tile::kFewRows:
      return launch(PairShape<8, 1>());
    default:
      return launch(PairShape<8, 2>());
  }
}
// Whether the state has rows of 64 elements, and a multiple of 64 of them a head.
inline bool GoesInPairs(const Problem& p, DType state_dtype) {
  return state_dtype != DType::kI8 && p.key_dim == kPairKeys && p.value_dim % kPairKeys == 0;
}

}  // namespace mneme::cuda::matrix_memory::rules
