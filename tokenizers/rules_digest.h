// A digest of rules that cut text: the same on every machine, in every version.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "base/sha256.h"

namespace mneme {

// Tells rules apart, not forgeries. Values count in their order, texts with their lengths.
class RulesDigest {
 public:
  RulesDigest& Add(absl::string_view text);
  RulesDigest& Add(uint64_t number);
  uint64_t Finish() const;

 private:
  Sha256 hash_;
};

}  // namespace mneme
