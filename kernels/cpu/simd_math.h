// Functions of a vector of sixteen floats, accurate to about two units in the last place.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/ops/dense.h"

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

// z / (1 + e^(-2u)), as Activation::kGeluTanh has it.
MNEME_INLINE Vec GeluTanh(Vec z) {
  const Vec twice_u =
      z * MulAdd(Set1(static_cast<float>(kGeluThird)), z * z, Set1(static_cast<float>(kGeluFirst)));
  return z / (Set1(1.0f) + Exp(Zero() - twice_u));
}

// The inverse hyperbolic tangent for |s| <= 1/3: eight terms of its series leave 2e-9 of the
// result.
MNEME_INLINE Vec SmallArtanh(Vec s) {
  const Vec z = s * s;
  Vec p = Set1(1.0f / 17);
  p = MulAdd(p, z, Set1(1.0f / 15));
  p = MulAdd(p, z, Set1(1.0f / 13));
  p = MulAdd(p, z, Set1(1.0f / 11));
  p = MulAdd(p, z, Set1(1.0f / 9));
  p = MulAdd(p, z, Set1(1.0f / 7));
  p = MulAdd(p, z, Set1(1.0f / 5));
  p = MulAdd(p, z, Set1(1.0f / 3));
  return MulAdd(s * z, p, s);
}

// log(1 + e^x) = max(x, 0) + log(1 + y), y = e^-|x| <= 1, and log(1 + y) = 2 artanh(y / (2 + y)),
// whose argument is at most 1/3.
MNEME_INLINE Vec Softplus(Vec x) {
  const Vec y = Exp(Zero() - Abs(x));
  return MulAdd(Set1(2.0f), SmallArtanh(y / (Set1(2.0f) + y)), Max(Zero(), x));
}

// log x of a positive normal number: with x = m 2^n and m between the roots of 1/2 and of 2, it is
// n ln 2 + 2 artanh((m - 1) / (m + 1)), whose argument is at most 0.172.
MNEME_INLINE Vec Log(Vec x) {
  const Vec n = Exponent(x * Set1(0x1.6a09e6p0f));
  const Vec m = Scale(x, Zero() - n);
  const Vec log_m = Set1(2.0f) * SmallArtanh((m - Set1(1.0f)) / (m + Set1(1.0f)));
  return MulAdd(n, Set1(0x1.62e43p-1f), log_m);
}

// log(1 - c) for 0 <= c < 1, of which the caller knows f = 1 - c as well: right relative to itself
// where c is tiny, and where f is. log(1 - c) = -2 artanh(c / (2 - c)) up to c = 1/2; what f lacks
// to 1/2 is a factor for itself.
MNEME_INLINE Vec LogComplement(Vec c, Vec f) {
  const Vec near = Min(Set1(0.5f), c);
  const Vec far = Log(Set1(2.0f) * Max(Set1(0x1p-126f), Min(Set1(0.5f), f)));
  return far - Set1(2.0f) * SmallArtanh(near / (Set1(2.0f) - near));
}

// 1 - e^x for x <= 0, right relative to itself: with x = a + b and a >= -1/2 it is
// (1 - e^a) + e^a (1 - e^b), the first by a Taylor series whose first omitted term is below 3e-10.
MNEME_INLINE Vec OneMinusExp(Vec x) {
  const Vec a = Max(Set1(-0.5f), x);
  Vec p = Set1(1.0f / 40320);
  p = MulAdd(p, a, Set1(1.0f / 5040));
  p = MulAdd(p, a, Set1(1.0f / 720));
  p = MulAdd(p, a, Set1(1.0f / 120));
  p = MulAdd(p, a, Set1(1.0f / 24));
  p = MulAdd(p, a, Set1(1.0f / 6));
  p = MulAdd(p, a, Set1(0.5f));
  const Vec small = Zero() - MulAdd(a * a, p, a);
  return MulAdd(Set1(1.0f) - small, Set1(1.0f) - Exp(x - a), small);
}

// With c = 1 - e^(-2 |x|) it is c / (2 - c), and of x's sign: right relative to itself.
MNEME_INLINE Vec Tanh(Vec x) {
  const Vec c = OneMinusExp(Set1(-2.0f) * Abs(x));
  const Vec y = c / (Set1(2.0f) - c);
  return WhereLess(x, Zero(), Zero() - y, y);
}

// The normal distribution: Phi(x), and e^(-x^2/2), which is sqrt(2 pi) its derivative.
struct Normal {
  Vec cumulative, bell;
};
// Phi(-u) = e^(-u^2/2) t p(t) for u >= 0 and t = 1 / (1 + u / 4); p interpolates at the Chebyshev
// nodes of u <= 14, beyond which Phi(-u) is zero, and is right to 1.5e-8 of itself.
MNEME_INLINE Normal NormalDistribution(Vec x) {
  const Vec t = Set1(1.0f) / MulAdd(Set1(0.25f), Abs(x), Set1(1.0f));
  const Vec bell = Exp(Set1(-0.5f) * x * x);
  Vec p = Set1(0x1.f81704p-7f);
  p = MulAdd(p, t, Set1(-0x1.cd9500p-5f));
  p = MulAdd(p, t, Set1(0x1.2bf3c2p-5f));
  p = MulAdd(p, t, Set1(0x1.8bd25ep-5f));
  p = MulAdd(p, t, Set1(-0x1.e213d6p-9f));
  p = MulAdd(p, t, Set1(0x1.86a888p-4f));
  p = MulAdd(p, t, Set1(0x1.1aabf2p-4f));
  p = MulAdd(p, t, Set1(0x1.89d57ep-4f));
  p = MulAdd(p, t, Set1(0x1.9735e2p-4f));
  p = MulAdd(p, t, Set1(0x1.989556p-4f));
  const Vec tail = bell * (t * p);
  return {WhereLess(x, Zero(), tail, Set1(1.0f) - tail), bell};
}

}  // namespace mneme::MNEME_ISA
