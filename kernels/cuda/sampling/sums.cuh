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

// e^x in units of a Mass, for x <= 0 or NaN. Without branches, so that several interleave.
__device__ inline uint64_t Weight(double x) {
  const uint64_t weight = __double2ull_rn(ExpOfNegative(x) * 0x1p63);
  return x >= -kDeepest ? weight : 0;
}

template <typename T>
__device__ inline T ShuffleXor(T value, int lanes) {
  if constexpr (sizeof(T) == sizeof(Mass)) {
    const uint64_t high = __shfl_xor_sync(kAllLanes, static_cast<uint64_t>(value >> 64), lanes);
    const uint64_t low = __shfl_xor_sync(kAllLanes, static_cast<uint64_t>(value), lanes);
    return Mass{high} << 64 | low;
  } else {
    return __shfl_xor_sync(kAllLanes, value, lanes);
  }
}
__device__ inline Mass ShuffleUp(Mass value, int lanes) {
  const uint64_t high = __shfl_up_sync(kAllLanes, static_cast<uint64_t>(value >> 64), lanes);
  const uint64_t low = __shfl_up_sync(kAllLanes, static_cast<uint64_t>(value), lanes);
  return Mass{high} << 64 | low;
}

// The sum of the values of lower threads. `scratch` has kWarps places and may be used again after
// the next __syncthreads().
__device__ inline Mass SumBefore(Mass value, Mass* scratch) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  Mass sum = value;
#pragma unroll
  for (int lanes = 1; lanes < kWarp; lanes *= 2) {
    const Mass other = ShuffleUp(sum, lanes);
    if (lane >= lanes) sum += other;
  }
  if (lane == kWarp - 1) scratch[warp] = sum;
  __syncthreads();
  sum -= value;
  for (int w = 0; w < warp; ++w) sum += scratch[w];
  return sum;
}
__device__ inline uint32_t SumBefore(uint32_t value, uint32_t* scratch) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  uint32_t sum = value;
#pragma unroll
  for (int lanes = 1; lanes < kWarp; lanes *= 2) {
    const uint32_t other = __shfl_up_sync(kAllLanes, sum, lanes);
    if (lane >= lanes) sum += other;
  }
  if (lane == kWarp - 1) scratch[warp] = sum;
  __syncthreads();
  sum -= value;
  for (int w = 0; w < warp; ++w) sum += scratch[w];
  return sum;
}

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

  // visit(token, logits, keep) for the model's logits of token, token + 1, ..., of which those with
  // a bit in `keep` count; visit_replaced(token, double) for the others.
  template <int kGroup, typename Visit, typename VisitReplaced>
  __device__ void ForEachFour(Visit visit, VisitReplaced visit_replaced) const {
    const int thread = threadIdx.x;
    const auto kept = [this](int token) {
      if (replaced == nullptr) return 0xfu;
      return ~(replaced[(token - begin) / 32] >> ((token - begin) % 32));
    };
    if (in_fours) {
      // kGroup loads are under way together: their latency is what a pass waits for.
      constexpr int kStep = 4 * kThreads;
      for (int first = begin + 4 * thread; first < end; first += kGroup * kStep) {
        float4 group[kGroup];
#pragma unroll
        for (int n = 0; n < kGroup; ++n) {
          const int token = first + n * kStep;
          if (token < end) group[n] = *reinterpret_cast<const float4*>(logits + token);
        }
#pragma unroll
        for (int n = 0; n < kGroup; ++n) {
          const int token = first + n * kStep;
          const float four[4] = {group[n].x, group[n].y, group[n].z, group[n].w};
          if (token < end) visit(token, four, kept(token));
        }
      }
    } else {
      for (int token = begin + thread; token < end; token += kThreads) {
        const float now[4] = {logits[token], 0, 0, 0};
        visit(token, now, kept(token) & 1u);
      }
    }
    if (replaced == nullptr) return;
    for (int i = thread; i < bias_count; i += kThreads) {
      if (Has(bias[i].token)) visit_replaced(bias[i].token, bias_logits[i]);
    }
    for (int i = thread; i < history_count; i += kThreads) {
      if (Has(history[i].token)) visit_replaced(history[i].token, history_logits[i]);
    }
  }
  // visit(token, double) for all logits.
  template <typename Visit>
  __device__ void ForEach(Visit visit) const {
    ForEachFour<4>(
        [visit](int token, const float(&four)[4], unsigned keep) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            if ((keep >> j & 1) != 0) visit(token + j, static_cast<double>(four[j]));
          }
        },
        visit);
  }
};

// The largest logit, its lowest token, and the smallest, of those above -inf and not NaN. token -1:
// there are none.
struct Extremes {
  double largest = -INFINITY, smallest = INFINITY;
  int32_t token = -1;

  __device__ void Add(const Extremes& other) {
    if (other.token < 0) return;
    if (token < 0 || other.largest > largest || (other.largest == largest && other.token < token)) {
      largest = other.largest;
      token = other.token;
    }
    smallest = fmin(smallest, other.smallest);
  }
};

}  // namespace mneme::cuda::sampling
