// Counts this thread's allocations, in programs that are made with allocation_counts.cc: that has
// an operator new of its own, which shows copies that nobody else counts.
#pragma once

#include <cstdint>

namespace mneme {

struct AllocationCounts {
  int64_t allocations = 0;
  int64_t bytes = 0;
};

// Since the thread began.
AllocationCounts Allocated();

}  // namespace mneme
