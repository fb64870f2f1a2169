// The pieces that tolerances are made of. docs/numerics.md derives them; a test writes its bound as
// a sum of such pieces and never as a guessed number.
#pragma once

#include <algorithm>
#include <cmath>

namespace mneme {

// Unit roundoff: the relative error of one rounding to nearest.
constexpr double kUnitF32 = 0x1p-24;
constexpr double kUnitBF16 = 0x1p-8;
// The relative error that approximations of exp, log and division may add: four units in the last
// place.
constexpr double kFunctionError = 4 * 0x1p-23;
// Absolute error below which results are subnormal or flushed to zero in f32.
constexpr double kTinyF32 = 0x1p-119;

// Relative to sum |a_i b_i|: error of a sum of n products in f32, whatever its order and whether or
// not products are fused. n u always holds; 6 sqrt(n) u holds but for a chance of n e^-18 if
// roundings are independent (Higham and Mary, 2019), and is the tighter from n = 36 on.
inline double SumError(double n) { return std::min(n + 1, 6 * std::sqrt(n + 1)) * kUnitF32; }

}  // namespace mneme
