// SHA-256, as in FIPS 180-4: a checksum that every language's library can compute again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace mneme {

// The digest of the bytes of all calls to Add, in their order.
class Sha256 {
 public:
  using Digest = std::array<std::byte, 32>;

  void Add(std::span<const std::byte> bytes);
  // The digest of what was added so far; more may be added afterwards.
  Digest Finish() const;

 private:
  static constexpr size_t kBlockBytes = 64;

  void AddBlock(const std::byte* block);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, kBlockBytes> block_ = {};  // what is there of the next one
  uint64_t bytes_ = 0;
};

}  // namespace mneme
