#include "tokenizers/text_edges.h"

#include "tokenizers/unicode/character_class.h"
#include "tokenizers/unicode/code_point.h"

namespace mneme {

size_t LeadingWhiteSpace(absl::string_view text) {
  size_t end = 0;
  while (end < text.size()) {
    const CodePoint c = CodePointAt(text, end);
    if (!HasFlag(c.value, kWhiteSpaceFlag)) break;
    end += c.length;
  }
  return end;
}

size_t TrailingWhiteSpace(absl::string_view text) {
  size_t begin = text.size();
  while (begin > 0) {
    const size_t at = PreviousCodePoint(text, begin);
    if (!HasFlag(CodePointAt(text, at).value, kWhiteSpaceFlag)) break;
    begin = at;
  }
  return text.size() - begin;
}

bool StartsWithWord(absl::string_view text) {
  return !text.empty() && HasFlag(CodePointAt(text, 0).value, kWordFlag);
}

bool EndsWithWord(absl::string_view text) {
  return !text.empty() &&
         HasFlag(CodePointAt(text, PreviousCodePoint(text, text.size())).value, kWordFlag);
}

}  // namespace mneme
