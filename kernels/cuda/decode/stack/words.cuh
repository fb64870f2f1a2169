// How threads and blocks of decode/stack/stack.cu hear of each other: a barrier of a block's
// compute warps, and words that say which layer their value is of.
#pragma once

#include "kernels/cuda/common/async_copy.cuh"
#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/decode/stack/stack.h"

namespace mneme::cuda::decode::stack {

// The same value, of which the compiler does not know it: what follows from it is computed where it
// is needed. What it computes ahead of all layers instead it keeps in registers that it has not
// got.
__device__ inline int Anew(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
__device__ inline int Thread() { return Anew(static_cast<int>(threadIdx.x)); }

// All compute warps; the loader goes its own way.
__device__ inline void SyncCompute() {
  asm volatile("bar.sync 1, %0;" ::"n"(static_cast<int>(kComputeThreads)) : "memory");
}

__device__ inline void Put(Word* at, float value, uint32_t layer) {
  const uint64_t bits = uint64_t{layer} << 32 | __float_as_uint(value);
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(bits) : "memory");
}
__device__ inline uint64_t Peek(const Word* at) {
  uint64_t bits;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(bits) : "l"(at) : "memory");
  return bits;
}
__device__ inline bool Is(uint64_t bits, uint32_t layer) { return bits >> 32 == layer; }
__device__ inline float ValueOf(uint64_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits));
}
// Looks at two words side by side, at an even place.
__device__ inline void Peek2(const Word* at, uint64_t& first, uint64_t& second) {
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(first), "=l"(second)
               : "l"(at)
               : "memory");
}
// Two values, once both are there.
__device__ inline float2 Await2(const Word* at, uint32_t layer) {
  uint64_t a, b;
  do {
    Peek2(at, a, b);
  } while (!Is(a, layer) || !Is(b, layer));
  return {ValueOf(a), ValueOf(b)};
}

// Pairs i, i + step, .. of `count` words, those that exist, once all are there.
template <int kPairs>
__device__ inline void AwaitPairs(const Word* words, int i, int step, int count, uint32_t layer,
                                  float2 (&values)[kPairs]) {
  uint64_t bits[kPairs][2];
  bool there;
  do {
    there = true;
#pragma unroll
    for (int n = 0; n < kPairs; ++n) {
      const int k = i + n * step;
      if (k < count) Peek2(words + k, bits[n][0], bits[n][1]);
    }
#pragma unroll
    for (int n = 0; n < kPairs; ++n) {
      if (i + n * step < count) there = there && Is(bits[n][0], layer) && Is(bits[n][1], layer);
    }
  } while (!there);
#pragma unroll
  for (int n = 0; n < kPairs; ++n) values[n] = {ValueOf(bits[n][0]), ValueOf(bits[n][1])};
}

}  // namespace mneme::cuda::decode::stack
