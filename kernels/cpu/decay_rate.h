// The rate of a gate that forgets by the exponential of a weight, of a vector of sixteen floats.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_math.h"

namespace mneme::MNEME_ISA {

// e^x, at most FLT_MAX: what is then multiplied by zero stays a number.
MNEME_INLINE Vec BoundedExp(Vec x) { return Min(Set1(__FLT_MAX__), Exp(x)); }

// e^a_log softplus(z), at most FLT_MAX. Far below zero softplus(z) is e^z, and the product a single
// power, which may be a fair number where neither factor is.
MNEME_INLINE Vec DecayRate(Vec a_log, Vec z) {
  const Vec product = Min(Set1(__FLT_MAX__), BoundedExp(a_log) * Softplus(z));
  return WhereLess(z, Set1(-17.0f), BoundedExp(a_log + z), product);
}

}  // namespace mneme::MNEME_ISA
