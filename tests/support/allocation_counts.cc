#include "tests/support/allocation_counts.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

thread_local mneme::AllocationCounts counts;

}  // namespace

namespace mneme {

AllocationCounts Allocated() { return counts; }

}  // namespace mneme

// Not inlined, or the compiler takes what they do for a mismatch.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++counts.allocations;
  counts.bytes += static_cast<int64_t>(bytes);
  void* const memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
