// The forms of product that linear.cc has with the instruction set it is built for.
#pragma once

namespace mneme::MNEME_ISA {

// bf16 by bf16 on tile registers, or else by the dot product of vectors. Never both: they sum in
// different orders.
#if defined(__AMX_BF16__)
#define MNEME_TILE_PRODUCTS 1
#elif defined(__AVX512BF16__)
#define MNEME_PAIR_PRODUCTS 1
#endif

#if defined(MNEME_TILE_PRODUCTS) || defined(MNEME_PAIR_PRODUCTS)
#define MNEME_BF16_PRODUCTS 1
constexpr bool kHasBF16Products = true;
#else
constexpr bool kHasBF16Products = false;
#endif

// Entries of one task: bounds the copy of its activations, large enough that reading the weights
// again for the next block of entries costs nothing beside the arithmetic.
constexpr int kMaxEntries = 256;

}  // namespace mneme::MNEME_ISA
