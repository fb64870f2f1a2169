// Texts of all planes of Unicode that reach the corners: marks in any order, characters that
// decompose, contractions, white space of every kind, code points that mean nothing yet.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "absl/strings/string_view.h"
#include "tokenizers/unicode/code_point.h"

namespace mneme {

// Valid UTF-8 of up to `most` parts.
inline std::string RandomText(std::mt19937_64& random, int most) {
  static constexpr absl::string_view kParts[] = {
      "a",  "B",   "s",      "'s", "'S",     "'\u017F", "'ll",    "'re", "'VE",    "'x", "word",
      "Up", "UP",  "12",     "3",  "\u00BD", "\u2167",  "\u0663", "  ",  " ",      "\n", "\r\n",
      "\t", "\n ", "\u00A0", "!",  ".,",     "/",       "-",      "\"",  "\u3000", "_",  "\u0085"};
  static constexpr struct {
    char32_t first, last;
  } kRanges[] = {{0, 0x7F},          {0x80, 0x24F},      {0x300, 0x36F},     {0x370, 0x5FF},
                 {0x600, 0x1000},    {0x1100, 0x11FF},   {0x1E00, 0x1FFF},   {0x2000, 0x2BFF},
                 {0x3000, 0x30FF},   {0x4E00, 0x4E80},   {0xAC00, 0xAC40},   {0xF900, 0xFFFF},
                 {0x10000, 0x1FFFF}, {0x20000, 0x20100}, {0xE0000, 0xE01FF}, {0, 0x10FFFF}};
  std::string text;
  const auto below = [&](size_t bound) { return random() % bound; };
  for (size_t left = below(static_cast<size_t>(most) + 1); left > 0; --left) {
    if (below(2) == 0) {
      const absl::string_view part = kParts[below(std::size(kParts))];
      text.append(part.data(), part.size());
      continue;
    }
    const auto& range = kRanges[below(std::size(kRanges))];
    const char32_t c = range.first + static_cast<char32_t>(below(range.last - range.first + 1));
    if (c < 0xD800 || c >= 0xE000) AppendUtf8(c, text);
  }
  return text;
}

}  // namespace mneme
