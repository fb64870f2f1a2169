// CRC-32C (Castagnoli, reflected, as in RFC 3720): the checksum of all that the store writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/strings/string_view.h"

namespace mneme {

// The sum of bytes whose sum is `crc`, 0 for none, followed by `bytes`.
uint32_t Crc32c(uint32_t crc, std::span<const std::byte> bytes);
inline uint32_t Crc32c(uint32_t crc, absl::string_view bytes) {
  return Crc32c(crc, std::as_bytes(std::span(bytes.data(), bytes.size())));
}
// Of bytes whose sum is `first`, followed by so many whose sum is `second`.
uint32_t ConcatCrc32c(uint32_t first, uint32_t second, uint64_t second_bytes);

}  // namespace mneme
