// The kind of character that a code point is. Which version of Unicode says so is in tables.h;
// tables are made when they are first asked for. Any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "tokenizers/unicode/code_point_table.h"

namespace mneme {

// In this order in the table, and so are the letters' kinds and so on: see CategorySet.
enum class GeneralCategory : uint8_t {
  kCn,
  kLu,
  kLl,
  kLt,
  kLm,
  kLo,
  kMn,
  kMc,
  kMe,
  kNd,
  kNl,
  kNo,
  kPc,
  kPd,
  kPs,  //
  kPe,
  kPi,
  kPf,
  kPo,
  kSm,
  kSc,
  kSk,
  kSo,
  kZs,
  kZl,
  kZp,
  kCc,
  kCf,
  kCo,
};

// As patterns see it: \p{L}.
const CodePointTable& CategoryTable();

// One bit for each category that the short name of a property stands for: "L", "Lu".
std::optional<uint32_t> CategorySet(absl::string_view name);
constexpr uint32_t CategoryBit(GeneralCategory category) {
  return uint32_t{1} << static_cast<int>(category);
}

// As patterns see it, \p{Han}: a number for each of the scripts that ScriptNumber knows, else 0.
const CodePointTable& ScriptTable();
std::optional<uint8_t> ScriptNumber(absl::string_view name);

// As UnicodeScripts sees it: equal numbers are kept together, and 0 goes with any.
const CodePointTable& SectionScriptTable();

enum CharacterFlags : uint8_t {
  kPatternWordFlag = 1 << 0,  // \w in a class of a pattern; elsewhere see IsPatternWord
  kWordFlag = 1 << 1,         // what Whitespace takes for a part of a word
  kPunctuationFlag = 1 << 2,  // with all of ASCII's
  kNumericFlag = 1 << 3,
  kMarkFlag = 1 << 4,         // what StripAccents removes
  kBertMarkFlag = 1 << 5,     // what BertNormalizer removes for an accent
  kBertControlFlag = 1 << 6,  // what BertNormalizer's clean_text removes
  kWhiteSpaceFlag = 1 << 7,   // White_Space, also \s of a pattern
};
const CodePointTable& FlagTable();

inline bool HasFlag(char32_t c, CharacterFlags flag) { return (FlagTable()[c] & flag) != 0; }

// \w and \b of a pattern. Oniguruma takes superscripts and fractions of Latin-1 for parts of words,
// but not in a class.
inline bool IsPatternWord(char32_t c) {
  return HasFlag(c, kPatternWordFlag) || c == 0xB2 || c == 0xB3 || c == 0xB9 ||
         (c >= 0xBC && c <= 0xBE);
}

}  // namespace mneme
