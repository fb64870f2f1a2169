// Origins of web pages: from the text of a flag to what browsers send.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace mneme {

// The origins that `text` has between commas, in the one spelling that browsers use: lower case,
// and without the port that http or https has anyway. "*" alone means all, "" none.
// INVALID_ARGUMENT names the entry that is no origin.
absl::StatusOr<std::vector<std::string>> ParseOrigins(absl::string_view text);

}  // namespace mneme
