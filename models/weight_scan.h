// One pass over a tensor's bytes while it is loaded: are all elements finite, and what do they hash
// to?
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/strings/string_view.h"
#include "base/thread_pool.h"
#include "kernels/tensor_view.h"

namespace mneme {

struct WeightScan {
  uint64_t hash = 0;              // of the bytes; the same for any number of threads
  int64_t first_non_finite = -1;  // index of the first NaN or infinity; -1: there is none
};

// `dtype` is f32, bf16 or f16; `bytes` a whole number of elements, at any alignment.
WeightScan ScanWeights(ThreadPool& pool, std::span<const std::byte> bytes, DType dtype);

// A 64-bit hash for telling contents apart, not against forgery.
uint64_t HashBytes(std::span<const std::byte> bytes);
uint64_t HashText(absl::string_view text);
// Order matters.
uint64_t CombineHashes(uint64_t a, uint64_t b);

}  // namespace mneme
