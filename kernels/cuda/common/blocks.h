// The size of a grid.
#pragma once

#include <cstdint>

namespace mneme::cuda {

// Blocks that take `each` of the items, the last one perhaps fewer.
inline int BlocksFor(int64_t items, int each) {
  return static_cast<int>((items + each - 1) / each);
}

}  // namespace mneme::cuda
