// What a session's file says of itself, for mneme-inspect.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace mneme {

// Prints its facts and tensors, as a table or as one line of JSON. An error, after that, where the
// checksum is not that of the bytes.
absl::Status PrintSessionFile(const std::string& path, bool json);

}  // namespace mneme
