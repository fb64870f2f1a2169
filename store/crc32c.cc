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

// Sums are polynomials over bits modulo the one above: bit 31 is 1, bit 30 is x. A sum that so many
// bytes follow is multiplied by x^(8 * bytes).
constexpr uint32_t Multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = uint32_t{1} << 31; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b >> 1) ^ ((b & 1) != 0 ? kPolynomial : 0);
  }
  return product;
}
constexpr uint32_t ShiftOf(uint64_t bytes) {
  uint32_t shift = uint32_t{1} << 31;
  for (uint32_t square = uint32_t{1} << 23; bytes != 0; bytes >>= 1) {
    if ((bytes & 1) != 0) shift = Multiply(shift, square);
    square = Multiply(square, square);
  }
  return shift;
}

#if defined(__x86_64__)
// The instruction takes three cycles, of which it can begin one each: three parts at once.
constexpr size_t kPartBytes = 16384;

__attribute__((target("sse4.2"))) uint32_t Accelerated(uint32_t sum,
                                                       std::span<const std::byte> bytes) {
  constexpr uint32_t kShift = ShiftOf(kPartBytes);
  const std::byte* next = bytes.data();
  size_t left = bytes.size();
  for (; left >= 3 * kPartBytes; left -= 3 * kPartBytes, next += 3 * kPartBytes) {
    uint64_t first = sum, second = 0, third = 0;
    for (size_t i = 0; i < kPartBytes; i += 8) {
      first = __builtin_ia32_crc32di(first, Load64(next + i));
      second = __builtin_ia32_crc32di(second, Load64(next + kPartBytes + i));
      third = __builtin_ia32_crc32di(third, Load64(next + 2 * kPartBytes + i));
    }
    const uint32_t two = Multiply(kShift, static_cast<uint32_t>(first)) ^ second;
    sum = Multiply(kShift, two) ^ static_cast<uint32_t>(third);
  }
  uint64_t wide = sum;
  for (; left >= 8; left -= 8, next += 8) wide = __builtin_ia32_crc32di(wide, Load64(next));
  return Portable(static_cast<uint32_t>(wide), {next, left});
}
#endif

}  // namespace

uint32_t ConcatCrc32c(uint32_t first, uint32_t second, uint64_t second_bytes) {
  return Multiply(ShiftOf(second_bytes), first) ^ second;
}

uint32_t Crc32c(uint32_t crc, std::span<const std::byte> bytes) {
#if defined(__x86_64__)
  static const bool accelerated = __builtin_cpu_supports("sse4.2") != 0;
  if (accelerated) return ~Accelerated(~crc, bytes);
#endif
  return ~Portable(~crc, bytes);
}

}  // namespace mneme
