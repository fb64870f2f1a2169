// Facts about characters, found by tools/make_unicode_tables.py, as compact as they are written;
// the other headers of this folder are what to ask.
//
// The tokenizers package of Python 0.23, which made the ids that checkpoints were trained with, is
// built of parts that know different versions of Unicode. So do these tables:
//
//   categories, scripts, word characters of patterns   16.0   (Oniguruma)
//   numeric characters, lowercase                      17.0   (Rust's standard library)
//   grapheme clusters                                  17.0
//   decompositions, combining classes, marks            9.0
//   punctuation; marks, control characters of BERT's    8.0
//   scripts that UnicodeScripts tells apart           ~10.0   (SentencePiece's list)
#pragma once

#include <cstdint>
#include <span>

namespace mneme::unicode_tables {

// Runs: the first code point of each, shifted left by 8, with the value of the run. Code points
// before the first run have the value 0.
std::span<const uint32_t> CategoryRuns();
std::span<const uint32_t> ScriptRuns();
std::span<const uint32_t> SectionScriptRuns();
std::span<const uint32_t> FlagRuns();
std::span<const uint32_t> GraphemeBreakRuns();
std::span<const uint32_t> CombiningClassRuns();

// One step of a canonical decomposition, in order of `from`: to `first` alone, if `second` is 0.
// `composes`: the pair is put together again by NFC. Hangul's syllables are calculated.
struct CanonicalRow {
  char32_t from, first, second;
  bool composes;
};
std::span<const CanonicalRow> CanonicalRows();

// Compatibility decompositions, which are complete, one after another: the code point, shifted left
// by 8, with their number of characters; then these. Characters whose canonical parts have one are
// not listed.
std::span<const uint32_t> CompatibilityMappings();

// The lowercase of `first`, `first` + `stride`, ... `last` is that much further. U+0130, whose
// lowercase has two characters, is not listed.
struct LowercaseRow {
  char32_t first, last;
  uint8_t stride;
  int32_t difference;
};
std::span<const LowercaseRow> LowercaseRows();

}  // namespace mneme::unicode_tables
