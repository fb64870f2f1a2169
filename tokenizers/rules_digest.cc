#include "tokenizers/rules_digest.h"

#include <array>
#include <cstddef>
#include <span>

namespace mneme {

RulesDigest& RulesDigest::Add(absl::string_view text) {
  Add(uint64_t{text.size()});
  hash_.Add(std::as_bytes(std::span(text.data(), text.size())));
  return *this;
}

RulesDigest& RulesDigest::Add(uint64_t number) {
  std::array<std::byte, 8> bytes;
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(number >> (8 * i));
  hash_.Add(bytes);
  return *this;
}

uint64_t RulesDigest::Finish() const {
  const Sha256::Digest digest = hash_.Finish();
  uint64_t first = 0;
  for (size_t i = 0; i < 8; ++i) first |= std::to_integer<uint64_t>(digest[i]) << (8 * i);
  return first;
}

}  // namespace mneme
