// The order in which a router prefers memories.
#pragma once

#include <cstdint>

namespace mneme::cuda::routing {

// Larger for a better choice: a larger logit, or an equal one of a lower index. NaN is the worst.
// Never zero.
__device__ inline uint64_t RouteRank(float logit, int memory) {
  uint32_t bits = __float_as_uint(logit == 0.0f ? 0.0f : logit);
  bits = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  if (isnan(logit)) bits = 0;
  return uint64_t{bits} << 32 | (0xffffffffu - static_cast<uint32_t>(memory));
}
__device__ inline int MemoryOfRank(uint64_t rank) {
  return static_cast<int>(0xffffffffu - static_cast<uint32_t>(rank));
}

}  // namespace mneme::cuda::routing
