// How threads and blocks of decode_layers.cu hear of each other: a barrier of a block's compute
// warps, and words that say which layer their value is of.
#pragma once

#include "kernels/cuda/decode_layers.h"

namespace mneme::cuda::layers {

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
// Of two words side by side, at an even place.
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

}  // namespace mneme::cuda::layers
