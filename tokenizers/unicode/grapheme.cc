#include "tokenizers/unicode/grapheme.h"

#include <cstdint>

#include "tokenizers/unicode/code_point.h"
#include "tokenizers/unicode/code_point_table.h"
#include "tokenizers/unicode/tables.h"

namespace mneme {
namespace {

// In the order of tools/make_unicode_tables.py.
enum class GraphemeBreak : uint8_t {
  kOther,
  kCr,
  kLf,
  kControl,
  kExtend,
  kLinker,  // Extend, and links consonants of Indic scripts
  kZwj,
  kSpacingMark,
  kPrepend,
  kRegionalIndicator,
  kPictographic,
  kConsonant,  // Other, and of an Indic script
  kLead,       // of Hangul, as are the next four
  kVowel,
  kTrail,
  kLeadVowel,
  kLeadVowelTrail,
};

constexpr char32_t kZeroWidthNonJoiner = 0x200C;

GraphemeBreak BreakOf(char32_t c) {
  static const auto* const table = new CodePointTable(unicode_tables::GraphemeBreakRuns());
  if (c - 0xAC00 < 11172) {
    return (c - 0xAC00) % 28 == 0 ? GraphemeBreak::kLeadVowel : GraphemeBreak::kLeadVowelTrail;
  }
  return static_cast<GraphemeBreak>((*table)[c]);
}

// Whether a cluster that has `last` at its end goes on with `next`, by the rules that need no more.
bool Joins(GraphemeBreak last, GraphemeBreak next) {
  using enum GraphemeBreak;
  if (last == kCr) return next == kLf;                               // GB3, GB4
  if (last == kLf || last == kControl) return false;                 // GB4
  if (next == kCr || next == kLf || next == kControl) return false;  // GB5
  if (last == kLead) {                                               // GB6
    if (next == kLead || next == kVowel || next == kLeadVowel || next == kLeadVowelTrail) {
      return true;
    }
  }
  if ((last == kLeadVowel || last == kVowel) && (next == kVowel || next == kTrail)) return true;
  if ((last == kLeadVowelTrail || last == kTrail) && next == kTrail) return true;  // GB7, GB8
  if (next == kExtend || next == kLinker || next == kZwj) return true;             // GB9
  return next == kSpacingMark || last == kPrepend;                                 // GB9a, GB9b
}

}  // namespace

size_t GraphemeEnd(absl::string_view text, size_t offset) {
  using enum GraphemeBreak;
  CodePoint c = CodePointAt(text, offset);
  size_t end = offset + c.length;
  GraphemeBreak last = BreakOf(c.value);
  // A pictograph and nothing but Extend since; a consonant and nothing but what extends it since,
  // with a linker among that; an odd number of regional indicators in a row.
  bool pictograph = last == kPictographic;
  bool consonant = last == kConsonant;
  bool linked = false;
  bool odd_indicators = last == kRegionalIndicator;
  while (end < text.size()) {
    // Most of what is not ASCII joins nothing either, but ASCII is told at a glance.
    c = CodePointAt(text, end);
    const GraphemeBreak next = BreakOf(c.value);
    const bool joins = Joins(last, next) || (consonant && linked && next == kConsonant) ||  // GB9c
                       (pictograph && last == kZwj && next == kPictographic) ||             // GB11
                       (odd_indicators && last == kRegionalIndicator && next == kRegionalIndicator);
    if (!joins) break;
    end += c.length;
    if (next == kPictographic) {
      pictograph = true;
    } else if (next != kExtend && next != kLinker && next != kZwj) {
      pictograph = false;
    }
    if (next == kConsonant) {
      consonant = true;
      linked = false;
    } else if (next == kLinker) {
      linked = true;
    } else if ((next != kExtend && next != kZwj) || c.value == kZeroWidthNonJoiner) {
      consonant = false;
    }
    odd_indicators = next == kRegionalIndicator && !odd_indicators;
    last = next;
  }
  return end;
}

}  // namespace mneme
