// Escapes, classes and single characters of a pattern, each of which stands for a set of
// characters.
#pragma once

#include <cstddef>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tokenizers/regex/character_set.h"
#include "tokenizers/regex/pattern_text.h"

namespace mneme {

// Options that hold from where they are set to the end of their group.
struct PatternFlags {
  bool ignore_case = false;
  bool dot_is_all = false;
};

bool IsAsciiLetter(char32_t c);
char32_t AsciiLower(char32_t c);

class SetSyntax : protected PatternText {
 protected:
  using PatternText::PatternText;

  // Adds what an escape stands for: one character, which is returned, or a set.
  absl::StatusOr<std::optional<char32_t>> AddEscape(PatternFlags flags, bool in_class,
                                                    CharacterSet& set);
  // Reads what follows a "[", with its "]".
  absl::StatusOr<CharacterSet> Class(PatternFlags flags);
  // With `ignore_case` also all that folds to one of the characters.
  absl::Status AddRange(char32_t first, char32_t last, PatternFlags flags, CharacterSet& set);

 private:
  absl::StatusOr<char32_t> HexNumber(bool four_digits);
  absl::Status AddProperty(bool negated, CharacterSet& set);
  // A character, a range or an escape; `begin` is where the class does.
  absl::Status ClassItem(PatternFlags flags, size_t begin, CharacterSet& set);
  absl::StatusOr<std::optional<char32_t>> ClassCharacter(PatternFlags flags, CharacterSet& set);
};

}  // namespace mneme
