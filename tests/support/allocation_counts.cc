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

// Both forms of new are replaced, as a sanitizer's own would not fit the delete
// below. Not inlined, or the compiler takes what they do for a mismatch.
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  ++counts.allocations;
  counts.bytes += static_cast<int64_t>(bytes);
  return std::malloc(bytes == 0 ? 1 : bytes);
}
[[gnu::noinline]] void* operator new(size_t bytes) {
  void* const memory = operator new(bytes, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
