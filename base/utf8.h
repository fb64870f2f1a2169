// UTF-8 as RFC 3629 defines it: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace mneme {

// U+FFFD, which stands for bytes that are not text.
inline constexpr absl::string_view kReplacementCharacter = "\xEF\xBF\xBD";

bool IsValidUtf8(absl::string_view text);

// Offset of the first byte that belongs to no well-formed sequence; text.size() if there is none.
size_t FirstInvalidUtf8(absl::string_view text);

// Bytes at the end of `text` that begin a well-formed sequence and lack its rest: 0 to 3. A decoder
// keeps them until more bytes arrive; those before them are final, valid or not.
size_t IncompleteUtf8Suffix(absl::string_view text);

// Length of the prefix a streaming decoder may emit now: all but the incomplete suffix.
inline size_t CompleteUtf8Prefix(absl::string_view text) {
  return text.size() - IncompleteUtf8Suffix(text);
}

// At most `max_bytes` of `text`, and "..." in place of the rest: to show a value whose length
// nobody bounds. No character of UTF-8 is cut.
std::string Shortened(absl::string_view text, size_t max_bytes);

// Valid UTF-8: each maximal ill-formed part becomes one U+FFFD, as Unicode recommends (chapter 3,
// "Substitution of Maximal Subparts") and as Python's errors="replace" does.
std::string SanitizeUtf8(absl::string_view text);

}  // namespace mneme
