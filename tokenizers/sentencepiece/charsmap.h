// Checks SentencePiece's normalisation table (normalizer_spec.precompiled_charsmap) before the
// library follows its offsets.
//
// Layout, little-endian: u32 size of the trie in bytes; the trie, a Darts double array of u32
// units; then the replacements as NUL-terminated UTF-8 strings, which the trie's values point into.
// Walking a text, the library reads unit[base ^ byte] for any byte, where base changes by the
// unit's offset; a unit whose label is that byte continues the match, and one with a leaf has its
// value at the new base. It keeps the matches of one position in an array of 32.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace mneme {

// INVALID_ARGUMENT if any text could make the library read outside the table or match more than 32
// entries at once, or if a replacement is not UTF-8. An empty table is none, and fine.
absl::Status CheckCharsmap(absl::string_view charsmap);

}  // namespace mneme
