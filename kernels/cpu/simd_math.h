// Functions of a vector of sixteen floats, accurate to about two units in the last place.
#pragma once

#include "kernels/cpu/simd.h"

namespace mneme::MNEME_ISA {

// e^x: with x = n ln 2 + r, |r| <= ln 2 / 2, it is 2^n times a Taylor series whose first omitted
// term is below 6e-9. Results below 2^-126 are zero (denormals are flushed), exp(-inf) included.
MNEME_INLINE Vec Exp(Vec x) {
  // Beyond these bounds the result is 0 or infinity anyway. The order of operands keeps a NaN.
  x = Min(Set1(89.0f), Max(Set1(-104.0f), x));
  const Vec n = Round(x * Set1(0x1.715476p0f));  // 1 / ln 2
  Vec r = NegMulAdd(n, Set1(0x1.62e4p-1f), x);   // ln 2 in two parts, the first of few bits,
  r = NegMulAdd(n, Set1(0x1.7f7d1cp-20f), r);    // so that its product is exact
  Vec p = Set1(1.0f / 5040);
  p = MulAdd(p, r, Set1(1.0f / 720));
  p = MulAdd(p, r, Set1(1.0f / 120));
  p = MulAdd(p, r, Set1(1.0f / 24));
  p = MulAdd(p, r, Set1(1.0f / 6));
  p = MulAdd(p, r, Set1(0.5f));
  p = MulAdd(p, r, Set1(1.0f));
  p = MulAdd(p, r, Set1(1.0f));
  return Scale(p, n);
}

MNEME_INLINE Vec Sigmoid(Vec x) { return Set1(1.0f) / (Set1(1.0f) + Exp(Zero() - x)); }

MNEME_INLINE Vec Silu(Vec x) { return x / (Set1(1.0f) + Exp(Zero() - x)); }

// log(1 + e^x) = max(x, 0) + log(1 + y), y = e^-|x| <= 1, and log(1 + y) = 2 artanh(y / (2 + y)),
// whose argument is at most 1/3: eight terms of its series leave 2e-9.
MNEME_INLINE Vec Softplus(Vec x) {
  const Vec y = Exp(Zero() - Abs(x));
  const Vec s = y / (Set1(2.0f) + y);
  const Vec z = s * s;
  Vec p = Set1(1.0f / 17);
  p = MulAdd(p, z, Set1(1.0f / 15));
  p = MulAdd(p, z, Set1(1.0f / 13));
  p = MulAdd(p, z, Set1(1.0f / 11));
  p = MulAdd(p, z, Set1(1.0f / 9));
  p = MulAdd(p, z, Set1(1.0f / 7));
  p = MulAdd(p, z, Set1(1.0f / 5));
  p = MulAdd(p, z, Set1(1.0f / 3));
  const Vec log1p = MulAdd(s * z, p, s);
  return MulAdd(Set1(2.0f), log1p, Max(Zero(), x));
}

}  // namespace mneme::MNEME_ISA
