// Random numbers as a function: the same (seed, stream, counter) gives the same bits on every
// device, in any order, on any thread, and nothing has to be stored between two draws.
//
// Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3"
// (SC 2011): ten rounds of two 32 x 32 -> 64 bit products over a 128-bit counter, with a 64-bit
// key.
#pragma once

#include <array>
#include <cstdint>

namespace mneme {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

constexpr PhiloxCounter Philox4x32(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;  // golden ratio
    key[1] += 0xBB67AE85;  // sqrt(3) - 1
  }
  return counter;
}

// 128 random bits. `seed` names the request, `stream` separates independent uses of it (a choice of
// n, a layer), `counter` is the position.
constexpr PhiloxCounter RandomBits(uint64_t seed, uint64_t stream, uint64_t counter) {
  return Philox4x32({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
                     static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

// Uniform in [0, 1): a multiple of 2^-24, every value equally likely, never rounded up to 1.
constexpr float UniformFloat(uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24f; }
constexpr float UniformFloat(uint64_t seed, uint64_t stream, uint64_t counter) {
  return UniformFloat(RandomBits(seed, stream, counter)[0]);
}

// Uniform in [0, 1): a multiple of 2^-53.
constexpr double UniformDouble(uint64_t seed, uint64_t stream, uint64_t counter) {
  const PhiloxCounter bits = RandomBits(seed, stream, counter);
  return static_cast<double>((uint64_t{bits[1]} << 32 | bits[0]) >> 11) * 0x1p-53;
}

}  // namespace mneme
