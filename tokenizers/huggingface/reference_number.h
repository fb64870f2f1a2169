#pragma once

#include "absl/strings/string_view.h"

namespace mneme {

// The number that the tokenizers package reads where a JSON text has `number`, a valid one: its
// parser rounds more than once, and the last bit decides between segmentations of equal score.
double ReferenceNumber(absl::string_view number);

}  // namespace mneme
