// Texts from outside, inside a line that people and machines read.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace mneme {

// `text` without what would start another line or move a terminal's cursor: a line break becomes
// "\n", a carriage return "\r", every other control character "\x1b".
std::string OneLine(absl::string_view text);

}  // namespace mneme
