// Arrays of any length, sixteen floats at a time.
#pragma once

#include <cstdint>

#include "kernels/cpu/simd.h"

namespace mneme::MNEME_ISA {

// Calls f(offset, lanes) for [0, n) in steps of a vector; the last may be partial.
template <typename F>
MNEME_INLINE void ForVectors(int64_t n, F f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(i, kLanes);
  if (i < n) f(i, static_cast<int>(n - i));
}

MNEME_INLINE Vec LoadUpTo(const float* p, int lanes) {
  return lanes == kLanes ? Load(p) : LoadFirst(p, lanes);
}
MNEME_INLINE void StoreUpTo(float* p, Vec a, int lanes) {
  if (lanes == kLanes) {
    Store(p, a);
  } else {
    StoreFirst(p, a, lanes);
  }
}

}  // namespace mneme::MNEME_ISA
