// The angles of rotary position embedding.
#pragma once

#include <cstdint>

namespace mneme::cuda {

// The angle less the nearest multiple of 2 pi; exact up to the rounding of the product itself, as
// 2 pi is taken to twice the precision of a float64.
__device__ inline float ReducedAngle(int64_t position, double frequency) {
  constexpr double kTurn = 6.283185307179586232;    // 2 pi, rounded
  constexpr double kRest = 2.4492935982947064e-16;  // what is missing
  constexpr double kInverse = 0.15915494309189533577;
  const double angle = static_cast<double>(position) * frequency;
  const double turns = rint(angle * kInverse);
  return static_cast<float>(fma(-turns, kRest, fma(-turns, kTurn, angle)));
}

}  // namespace mneme::cuda
