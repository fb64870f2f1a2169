// The beginnings and ends of texts. Texts are valid UTF-8.
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace mneme {

// Bytes of white space (Unicode's property White_Space) at either end.
size_t LeadingWhiteSpace(absl::string_view text);
size_t TrailingWhiteSpace(absl::string_view text);

// Whether a word character stands there: \w of Unicode's UTS 18, which is alphabetic characters,
// marks, decimal digits, connector punctuation and joiners.
bool StartsWithWord(absl::string_view text);
bool EndsWithWord(absl::string_view text);

}  // namespace mneme
