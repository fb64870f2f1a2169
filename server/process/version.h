#pragma once

#include "absl/strings/string_view.h"

namespace mneme {

// The server's version, "0.1.0".
absl::string_view ServerVersion();

}  // namespace mneme
