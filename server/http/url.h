// The parts of a request's target.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace mneme {

// Appends `text` to `out` with "%41" turned into "A". False for "%" without two hexadecimal digits
// behind it.
bool PercentDecode(absl::string_view text, std::string& out);

// "limit=5&after=a%20b" by name. INVALID_ARGUMENT for a name that comes twice, or a broken "%".
absl::StatusOr<std::map<std::string, std::string>> ParseQuery(absl::string_view query);

}  // namespace mneme
