// Laying out arrays in a block's shared memory.
#pragma once

namespace mneme::cuda {

// Where an array of n floats begins behind `floats` others, which it joins. All begin at 16 bytes.
inline int TakeFloats(int n, int& floats) {
  const int taken = floats;
  floats += (n + 3) / 4 * 4;
  return taken;
}

}  // namespace mneme::cuda
