#include "store/crc32c.h"

#include <array>
#include <cstring>

namespace mneme {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;

// kTables[k][b]: the sum of byte b followed by k zeros, so that eight bytes are eight look-ups.
constexpr std::array<std::array<uint32_t, 256>, 8> MakeTables() {
  std::array<std::array<uint32_t, 256>, 8> tables = {};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t sum = byte;
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ ((sum & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = sum;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}
constexpr auto kTables = MakeTables();

uint64_t Load64(const std::byte* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

uint32_t Portable(uint32_t sum, std::span<const std::byte> bytes) {
  const std::byte* next = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; left -= 8, next += 8) {
    const uint64_t word = Load64(next) ^ sum;
    sum = 0;
    for (size_t i = 0; i < 8; ++i) sum ^= kTables[7 - i][(word >> (8 * i)) & 0xFF];
  }
  for (; left > 0; --left, ++next) {
    sum = (sum >> 8) ^ kTables[0][(sum ^ static_cast<uint32_t>(*next)) & 0xFF];
  }
  return sum;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t Accelerated(uint32_t sum,
                                                       std::span<const std::byte> bytes) {
  uint64_t wide = sum;
  const std::byte* next = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; left -= 8, next += 8) wide = __builtin_ia32_crc32di(wide, Load64(next));
  return Portable(static_cast<uint32_t>(wide), {next, left});
}
#endif

}  // namespace

uint32_t Crc32c(uint32_t crc, std::span<const std::byte> bytes) {
#if defined(__x86_64__)
  static const bool accelerated = __builtin_cpu_supports("sse4.2") != 0;
  if (accelerated) return ~Accelerated(~crc, bytes);
#endif
  return ~Portable(~crc, bytes);
}

}  // namespace mneme
