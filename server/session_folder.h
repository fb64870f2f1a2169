// What --plan says of the folder for sessions, which it leaves as it is.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace mneme {

// INVALID_ARGUMENT where no sessions can be kept in `folder`: it is something else, or cannot be
// made, read or written, which is tried with a folder or a file that is removed again. Whether
// another server has it now is not asked: the plan may be for when that has ended.
absl::Status CheckSessionFolder(const std::string& folder);

}  // namespace mneme
