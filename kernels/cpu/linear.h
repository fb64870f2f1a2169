// What linear.cc can do with the instruction set it is built for.
#pragma once

namespace mneme::MNEME_ISA {

#if defined(__AVX512BF16__)
constexpr bool kHasBF16Products = true;
#else
constexpr bool kHasBF16Products = false;
#endif

// Entries of one task: bounds the copy of its activations, large enough that reading the weights
// again for the next block of entries costs nothing beside the arithmetic.
constexpr int kMaxEntries = 256;

}  // namespace mneme::MNEME_ISA
