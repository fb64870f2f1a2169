// What the sampling kernel is built on: sums that do not depend on how a row is shared, and the
// row's values.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/team.cuh"
#include "kernels/kernels.h"

namespace mneme::cuda::sampling {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;

// Probabilities relative to the largest, in units of 2^-63, and their sums. Being integers, sums
// are exact: the same for any order of additions, so for any number of blocks and any batch. A
// vocabulary of n tokens errs by n 2^-64 of the largest probability at most, about as a sum of
// doubles does.
using Mass = unsigned __int128;

__device__ inline Mass Smaller(Mass a, Mass b) { return a < b ? a : b; }
__device__ inline double ToDouble(Mass mass) {
  return static_cast<double>(static_cast<uint64_t>(mass >> 64)) * 0x1p64 +
         static_cast<double>(static_cast<uint64_t>(mass));
}
// Rounded down; 0 <= value < 2^127.
__device__ inline Mass ToMass(double value) {
  const uint64_t high = __double2ull_rz(value * 0x1p-64);
  const uint64_t low = __double2ull_rz(value - static_cast<double>(high) * 0x1p64);
  return Mass{high} << 64 | low;
}

// e^x for -708 < x <= 0, to within two roundings.
__device__ inline double ExpOfNegative(double x) {
  constexpr double kRounder = 0x1.8p52;  // leaves no room for a fraction
  const double shifted = fma(x, 0x1.71547652b82fep0, kRounder);
  const double n = shifted - kRounder;
  const double r = fma(n, -0x1.473de6af278edp-34, fma(n, -0x1.62e42fefp-1, x));  // ln 2
  double p = 1.0 / 6227020800.0;
  p = fma(p, r, 1.0 / 479001600.0);
  p = fma(p, r, 1.0 / 39916800.0);
  p = fma(p, r, 1.0 / 3628800.0);
  p = fma(p, r, 1.0 / 362880.0);
  p = fma(p, r, 1.0 / 40320.0);
  p = fma(p, r, 1.0 / 5040.0);
  p = fma(p, r, 1.0 / 720.0);
  p = fma(p, r, 1.0 / 120.0);
  p = fma(p, r, 1.0 / 24.0);
  p = fma(p, r, 1.0 / 6.0);
  p = fma(p, r, 0.5);
  p = fma(p, r, 1.0);
  p = fma(p, r, 1.0);
  const int exponent = __double2loint(shifted) << 20;
  return __hiloint2double(__double2hiint(p) + exponent, __double2loint(p));
}

// Probabilities below e^-kDeepest round to nothing.
constexpr double kDeepest = 44.4;
// 2^(i/16), which lie in as many banks of shared memory.
constexpr int kPowers = 16;
using Powers = double[kPowers];

// e^x in units of a Mass: powers of 2^(1/16) from a table, and a polynomial between them. What
// instructions cannot have as immediates stays in registers, for loops over logits.
class Weights {
 public:
  __device__ explicit Weights(const Powers& powers) : powers_(powers) {}

  // The block's table, before a barrier.
  __device__ static void MakePowers(Powers& powers) {
    if (threadIdx.x < kPowers) powers[threadIdx.x] = exp2(threadIdx.x * (1.0 / kPowers));
  }
  // For x <= 0; 0 for NaN. Without branches, so that several interleave.
  __device__ uint64_t Of(double x) const {
    constexpr double kRounder = 0x1.8p52;  // leaves no room for a fraction
    const double shifted = fma(x, to_powers_, kRounder);
    const double n = shifted - kRounder;
    const double r = fma(n, ln2_low_, fma(n, ln2_high_, x));
    double p = fma(seventh_, r, sixth_);
    p = fma(p, r, fifth_);
    p = fma(p, r, fourth_);
    p = fma(p, r, third_);
    p = fma(p, r, 0.5);
    p = fma(p, r, 1.0);
    p = fma(p, r, 1.0);
    const int number = __double2loint(shifted);
    p *= powers_[number & (kPowers - 1)];
    const int exponent = (number >> 4) + 63;
    const double scaled = __hiloint2double(__double2hiint(p) + (exponent << 20), __double2loint(p));
    const uint64_t weight = __double2ull_rn(scaled);
    return x >= -kDeepest ? weight : 0;
  }

 private:
  static_assert(kPowers == 1 << 4);
  // A constant that the compiler takes for a variable.
  __device__ static double InRegister(double x) {
    asm volatile("" : "+d"(x));
    return x;
  }

  const Powers& powers_;
  const double to_powers_ = InRegister(kPowers * 0x1.71547652b82fep0);
  const double ln2_high_ = InRegister(-0x1.62e42fefp-1 / kPowers);
  const double ln2_low_ = InRegister(-0x1.473de6af278edp-34 / kPowers);
  const double seventh_ = InRegister(1.0 / 5040.0), sixth_ = InRegister(1.0 / 720.0);
  const double fifth_ = InRegister(1.0 / 120.0), fourth_ = InRegister(1.0 / 24.0);
  const double third_ = InRegister(1.0 / 6.0);
};

// What `shuffle` makes of a value, or of both halves of one that is too wide for it.
template <typename T, typename Shuffle>
__device__ inline T ByHalves(T value, Shuffle shuffle) {
  if constexpr (sizeof(T) == sizeof(Mass)) {
    const uint64_t high = shuffle(static_cast<uint64_t>(value >> 64));
    const uint64_t low = shuffle(static_cast<uint64_t>(value));
    return Mass{high} << 64 | low;
  } else {
    return shuffle(value);
  }
}
template <typename T>
__device__ inline T ShuffleXor(T value, int lanes) {
  return ByHalves(value, [=](auto part) { return __shfl_xor_sync(kAllLanes, part, lanes); });
}
template <typename T>
__device__ inline T ShuffleUp(T value, int lanes) {
  return ByHalves(value, [=](auto part) { return __shfl_up_sync(kAllLanes, part, lanes); });
}

// The sum of the values of lower threads, in a fixed order. `scratch` has kWarps places and may be
// used again after the next __syncthreads().
template <typename T>
__device__ inline T SumBefore(T value, T* scratch) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  T sum = value;
#pragma unroll
  for (int lanes = 1; lanes < kWarp; lanes *= 2) {
    const T other = ShuffleUp(sum, lanes);
    if (lane >= lanes) sum += other;
  }
  if (lane == kWarp - 1) scratch[warp] = sum;
  __syncthreads();
  T before = ShuffleUp(sum, 1);
  if (lane == 0) before = 0;
  T ahead = 0;
  for (int w = 0; w < warp; ++w) ahead += scratch[w];
  return ahead + before;
}

// The model's logits of a range of tokens, of which those in `replaced` do not count.
struct FloatValues {
  const float* logits;
  const uint32_t* replaced;  // a bit for each token from `begin` on; null: none
  int begin, end;

  // Bit j: whether the logit of token + j counts.
  __device__ unsigned Kept(int token) const {
    return replaced == nullptr ? 0xfu : ~(replaced[(token - begin) / 32] >> ((token - begin) % 32));
  }
  // visit(token, logits of token to token + 3, Kept(token)), four by four. kGroup loads are under
  // way together: their latency is what a pass waits for.
  template <int kGroup, typename Visit>
  __device__ void ForEach(Visit visit) const {
    constexpr int kStep = 4 * kThreads;
#pragma unroll 1
    for (int first = begin + 4 * static_cast<int>(threadIdx.x); first < end;
         first += kGroup * kStep) {
      float4 group[kGroup];
#pragma unroll
      for (int n = 0; n < kGroup; ++n) {
        const int token = first + n * kStep;
        group[n] = {};
        if (token < end) group[n] = __ldcg(reinterpret_cast<const float4*>(logits + token));
      }
#pragma unroll
      for (int n = 0; n < kGroup; ++n) {
        const int token = first + n * kStep;
        const float four[4] = {group[n].x, group[n].y, group[n].z, group[n].w};
        if (token < end) visit(token, four, Kept(token));
      }
    }
    __syncwarp();  // lanes that came late would go on alone
  }
};

// The logits that one block of a row's team looks at: those of a range of tokens. Tokens of the
// row's two lists have another logit than the model's; `replaced` has their bits.
struct Values {
  const float* logits = nullptr;
  int begin = 0, end = 0;
  bool in_fours = false;               // logits can be read 16 bytes at a time
  const uint32_t* replaced = nullptr;  // null: none
  const BiasToken* bias = nullptr;
  const HistoryToken* history = nullptr;
  int bias_count = 0, history_count = 0;
  // The logits of the lists' tokens. Tokens of both lists have it in the second only, and NaN in
  // the first.
  double* bias_logits = nullptr;
  double* history_logits = nullptr;

  __device__ bool Has(int token) const { return token >= begin && token < end; }

  // visit(token, logit) for all: a float where it is the model's, else a double.
  template <typename Visit>
  __device__ void ForEach(Visit visit) const {
    if (in_fours) {
      Fours().ForEach<1>([visit](int token, const float(&four)[4], unsigned keep) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if ((keep >> j & 1) != 0) visit(token + j, four[j]);
        }
      });
    } else {
#pragma unroll 1
      for (int token = begin + threadIdx.x; token < end; token += kThreads) {
        if ((Fours().Kept(token) & 1) != 0) visit(token, logits[token]);
      }
    }
    __syncwarp();
    ForEachReplaced(visit);
  }
  // visit(token, double) for the tokens of the lists.
  template <typename Visit>
  __device__ void ForEachReplaced(Visit visit) const {
    if (replaced == nullptr) return;
#pragma unroll 1
    for (int i = threadIdx.x; i < bias_count; i += kThreads) {
      if (Has(bias[i].token)) visit(bias[i].token, bias_logits[i]);
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < history_count; i += kThreads) {
      if (Has(history[i].token)) visit(history[i].token, history_logits[i]);
    }
    __syncwarp();
  }

  // The model's logits.
  __device__ FloatValues Fours() const { return {logits, replaced, begin, end}; }
};

}  // namespace mneme::cuda::sampling
