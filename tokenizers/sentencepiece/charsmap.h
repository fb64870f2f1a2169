// SentencePiece's normalisation table (normalizer_spec.precompiled_charsmap): checks it before the
// library follows its offsets, and reads it where there is no library to do so.
//
// Layout, little-endian: u32 size of the trie in bytes; the trie, a Darts double array of u32
// units; then the replacements as NUL-terminated UTF-8 strings, which the trie's values point into.
// Walking a text, the library reads unit[base ^ byte] for any byte, where base changes by the
// unit's offset; a unit whose label is that byte continues the match, and one with a leaf has its
// value at the new base. It keeps the matches of one position in an array of 32.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace mneme {

// INVALID_ARGUMENT if any text could make the library read outside the table or match more than 32
// entries at once, or if a replacement is not UTF-8. An empty table is none, and fine.
absl::Status CheckCharsmap(absl::string_view charsmap);

// Immutable: any thread may call const members at any time.
class Charsmap {
 public:
  // Errors as of CheckCharsmap; an empty table has no entries.
  static absl::StatusOr<Charsmap> Parse(absl::string_view charsmap);

  // The replacement of the shortest entry that `text` begins with; none if there is no entry.
  std::optional<absl::string_view> ShortestMatch(absl::string_view text) const;

 private:
  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace mneme
