// Sizes and segments that tests of RWKV's operations share.
#pragma once

#include <vector>

#include "tests/support/segments.h"

namespace mneme {

using Values = std::vector<double>;

inline constexpr int kRwkvDims[] = {1, 3, 16, 33, 64, 100, 600};

// Single entries, none, padding, fresh and other memories.
inline std::vector<SegmentSpec> SingleEntries() {
  return {{1, 2, 0, false}, {0, 1, 0, false}, {1, -1, 0, false}, {1, 0, 1, true}, {1, 3, 1, false}};
}

}  // namespace mneme
