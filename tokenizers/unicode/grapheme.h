// Extended grapheme clusters (UAX #29, Unicode 17.0): what a reader takes for one character.
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace mneme {

// Where the cluster that begins at `offset`, which is below text.size(), ends. Clusters follow one
// another from the text's start; `text` is valid UTF-8. Any thread.
size_t GraphemeEnd(absl::string_view text, size_t offset);

}  // namespace mneme
