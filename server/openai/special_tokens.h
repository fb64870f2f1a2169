// The tokens of a vocabulary that a chat template writes by their spelling, such as "</s>". Where
// the same spelling stands in a message it is text.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/engine.h"

namespace mneme {

// Made once for a model, as it looks at the whole vocabulary; immutable.
class SpecialTokens {
 public:
  // U+FDD0, a noncharacter: splits a spelling that is text.
  static constexpr absl::string_view kBreak = "\xEF\xB7\x90";

  // Control tokens, and those whose spelling is among `added`.
  SpecialTokens(const Tokenizer& tokenizer, const std::vector<std::string>& added);

  struct Found {
    size_t bytes = 0;  // 0: none begins here
    int32_t id = 0;
  };
  // The longest one that `text`, which is not empty, begins with.
  Found At(absl::string_view text) const;

  // `text` with a mark inside of each spelling.
  std::string Broken(absl::string_view text) const;

 private:
  std::array<std::vector<std::pair<std::string, int32_t>>, 256> by_first_byte_;  // longest first
};

}  // namespace mneme
