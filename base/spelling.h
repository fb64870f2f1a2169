// "Did you mean": the known word nearest to a mistyped one.
#pragma once

#include <span>
#include <string>

#include "absl/strings/string_view.h"

namespace mneme {

// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
int EditDistance(absl::string_view a, absl::string_view b);

// The nearest of `words`, or "" if none is near: a quarter of the letters may differ, but one at
// least and three at most. A word that begins with what was typed is near, however long, and a flag
// or field that ends with it, from three letters on.
std::string NearestSpelling(absl::string_view typed, std::span<const std::string> words);

// "auto, cpu or cuda".
std::string Alternatives(std::span<const std::string> words);

}  // namespace mneme
