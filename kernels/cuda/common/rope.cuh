// The angles of rotary position embedding.
#pragma once

#include <cstdint>

namespace mneme::cuda {

// Sine and cosine of position times frequency, which is exact up to the rounding of the product
// itself: whole turns are taken off in float64, 2 pi to twice its precision. What is left is given
// in half turns, whose sine, unlike that of radians, has no branch for large angles.
__device__ inline void SinCosOfAngle(int64_t position, double frequency, float* sin, float* cos) {
  constexpr double kTurn = 6.283185307179586232;    // 2 pi, rounded
  constexpr double kRest = 2.4492935982947064e-16;  // what is missing
  constexpr double kInverse = 0.15915494309189533577;
  const double angle = static_cast<double>(position) * frequency;
  const double turns = rint(angle * kInverse);
  const double left = fma(-turns, kRest, fma(-turns, kTurn, angle));
  sincospif(static_cast<float>(left * (2 * kInverse)), sin, cos);
}

}  // namespace mneme::cuda
