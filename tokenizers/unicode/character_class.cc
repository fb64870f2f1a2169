#include "tokenizers/unicode/character_class.h"

#include <array>
#include <cstddef>

#include "tokenizers/unicode/tables.h"

namespace mneme {
namespace {

constexpr std::array<absl::string_view, 29> kCategoryNames = {
    "Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps",
    "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};

constexpr std::array<absl::string_view, 29> kScriptNames = {
    "Arabic",   "Armenian", "Bengali",   "Bopomofo",  "Cyrillic", "Devanagari",
    "Ethiopic", "Georgian", "Greek",     "Gujarati",  "Gurmukhi", "Han",
    "Hangul",   "Hebrew",   "Hiragana",  "Kannada",   "Katakana", "Khmer",
    "Lao",      "Latin",    "Malayalam", "Mongolian", "Myanmar",  "Oriya",
    "Sinhala",  "Tamil",    "Telugu",    "Thai",      "Tibetan"};

}  // namespace

const CodePointTable& CategoryTable() {
  static const auto* const table = new CodePointTable(unicode_tables::CategoryRuns());
  return *table;
}

std::optional<uint32_t> CategorySet(absl::string_view name) {
  uint32_t set = 0;
  for (size_t i = 0; i < kCategoryNames.size(); ++i) {
    if (name == kCategoryNames[i] || name == kCategoryNames[i].substr(0, 1)) {
      set |= uint32_t{1} << i;
    }
  }
  if (set == 0) return std::nullopt;
  return set;
}

const CodePointTable& ScriptTable() {
  static const auto* const table = new CodePointTable(unicode_tables::ScriptRuns());
  return *table;
}

std::optional<uint8_t> ScriptNumber(absl::string_view name) {
  for (size_t i = 0; i < kScriptNames.size(); ++i) {
    if (name == kScriptNames[i]) return static_cast<uint8_t>(i + 1);
  }
  return std::nullopt;
}

const CodePointTable& SectionScriptTable() {
  static const auto* const table = new CodePointTable(unicode_tables::SectionScriptRuns());
  return *table;
}

const CodePointTable& FlagTable() {
  static const auto* const table = new CodePointTable(unicode_tables::FlagRuns());
  return *table;
}

}  // namespace mneme
