#include "base/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace mneme {
namespace {

constexpr std::array<uint32_t, 64> kRoundConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t LoadBig(const std::byte* at) {
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word = word << 8 | static_cast<uint32_t>(at[i]);
  return word;
}
void StoreBig(std::byte* at, uint32_t word) {
  for (int i = 0; i < 4; ++i) at[i] = static_cast<std::byte>(word >> (24 - 8 * i));
}

}  // namespace

void Sha256::Add(std::span<const std::byte> bytes) {
  const size_t filled = bytes_ % kBlockBytes;
  bytes_ += bytes.size();
  if (filled > 0) {
    const size_t taken = std::min(bytes.size(), kBlockBytes - filled);
    std::copy_n(bytes.begin(), taken, block_.begin() + static_cast<ptrdiff_t>(filled));
    bytes = bytes.subspan(taken);
    if (filled + taken < kBlockBytes) return;
    AddBlock(block_.data());
  }
  for (; bytes.size() >= kBlockBytes; bytes = bytes.subspan(kBlockBytes)) AddBlock(bytes.data());
  std::copy(bytes.begin(), bytes.end(), block_.begin());
}

void Sha256::AddBlock(const std::byte* block) {
  std::array<uint32_t, 64> w;
  for (size_t t = 0; t < 16; ++t) w[t] = LoadBig(block + 4 * t);
  for (size_t t = 16; t < 64; ++t) {
    const uint32_t early = w[t - 15], late = w[t - 2];
    w[t] = w[t - 16] + w[t - 7] + (std::rotr(early, 7) ^ std::rotr(early, 18) ^ (early >> 3)) +
           (std::rotr(late, 17) ^ std::rotr(late, 19) ^ (late >> 10));
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (size_t t = 0; t < 64; ++t) {
    const uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                        ((e & f) ^ (~e & g)) + kRoundConstants[t] + w[t];
    const uint32_t t2 =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const std::array<uint32_t, 8> added = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < added.size(); ++i) state_[i] += added[i];
}

Sha256::Digest Sha256::Finish() const {
  Sha256 end = *this;
  const uint64_t bits = bytes_ * 8;
  std::array<std::byte, kBlockBytes + 8> padding = {std::byte{0x80}};
  const size_t filled = bytes_ % kBlockBytes;
  const size_t zeros = (filled < 56 ? 56 : 120) - filled;  // with the first byte
  StoreBig(padding.data() + zeros, static_cast<uint32_t>(bits >> 32));
  StoreBig(padding.data() + zeros + 4, static_cast<uint32_t>(bits));
  end.Add(std::span(padding).first(zeros + 8));
  Digest digest;
  for (size_t i = 0; i < end.state_.size(); ++i) StoreBig(digest.data() + 4 * i, end.state_[i]);
  return digest;
}

}  // namespace mneme
