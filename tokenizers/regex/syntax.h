// Patterns of tokenizer.json, which Oniguruma reads where they come from, as a tree.
//
// Every construct that is read means exactly what it means there; all else is refused by name.
// Differences from other dialects that matter: "^" and "$" stand at lines, "." is all but "\n",
// "\s" is White_Space, "{1,3}+" is a repeated repeat and not possessive, "\h" is a hexadecimal
// digit, "[a[b]]" is a union, and letters in "(?i:...)" are matched by all that folds to them ("s"
// by U+017F).
//
//   read      literals, ".", classes with ranges and classes in them, \d \s \w \h \p{L} \p{Lu}
//             \p{Han} and their opposites, \t \n \r \f \v \a \e \xHH \x{H} \uHHHH, "|",
//             groups of all kinds, (?i:...) and (?m:...), (?>...), look-ahead, look-behind of fixed
//             length, ^ $ \A \z \Z \b \B, * + ? {n} {n,} {,m} {n,m}, lazy and possessive where
//             Oniguruma has them
//   refused   back references, recursion, \K \G \R \X, conditions, "&&", [:alpha:], (?x), names of
//             other properties, (?i:) beyond ASCII, repeats of what can match nothing and of
//             assertions, and "\b.*" at the beginning, which Oniguruma tries at lines' starts only
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tokenizers/regex/pattern_node.h"

namespace mneme {

// INVALID_ARGUMENT: not a pattern; UNIMPLEMENTED: a construct that is not read. Messages say which
// and where, not the whole pattern.
absl::StatusOr<PatternNode> ParsePattern(absl::string_view pattern);

}  // namespace mneme
