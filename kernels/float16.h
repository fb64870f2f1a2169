// The two 16-bit floating point formats of checkpoints, as bit patterns, to and from f32. Widening
// is exact; narrowing rounds to nearest, ties to even. Plain integer arithmetic: the same bits on
// every host, and the yardstick for the vector instructions that do the same.
#pragma once

#include <bit>
#include <cstdint>

namespace mneme {

// bf16: the upper half of an f32, 8 bits of exponent and 7 of fraction.
constexpr float F32FromBF16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// A NaN stays a NaN of the same sign (made quiet); what exceeds the largest bf16 becomes infinity.
constexpr uint16_t BF16FromF32(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  const uint32_t ties_to_even = (bits >> 16) & 1;
  return static_cast<uint16_t>((bits + 0x7fffu + ties_to_even) >> 16);
}

constexpr float RoundToBF16(float value) { return F32FromBF16(BF16FromF32(value)); }

// f16: IEEE binary16, 5 bits of exponent and 10 of fraction.
constexpr float F32FromF16(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
  if (exponent == 0) {
    // Zero or subnormal: fraction * 2^-24, exact in f32.
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
}

// As BF16FromF32; subnormal results are rounded like all others, never flushed.
constexpr uint16_t F16FromF32(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // >= 65520
  if (magnitude < 0x33000000u) return static_cast<uint16_t>(sign);             // < 2^-25

  // The 24-bit significand loses 13 bits in the normal range, more below 2^-14.
  const uint32_t exponent = magnitude >> 23;
  const uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
  const uint32_t lost = exponent >= 113 ? 13 : 126 - exponent;
  const uint32_t kept = significand >> lost;
  const uint32_t rest = significand & ((1u << lost) - 1);
  const uint32_t half = 1u << (lost - 1);
  const uint32_t rounded = kept + (rest > half || (rest == half && (kept & 1)) ? 1 : 0);
  // A carry out of the fraction lands in the exponent, which is where it belongs.
  const uint32_t base = exponent >= 113 ? (exponent - 113) << 10 : 0;
  return static_cast<uint16_t>(sign | (base + rounded));
}

}  // namespace mneme
