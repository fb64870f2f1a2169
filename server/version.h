#pragma once

#include "absl/strings/string_view.h"

namespace mneme {

// What the server calls itself, "0.1.0".
absl::string_view ServerVersion();

}  // namespace mneme
