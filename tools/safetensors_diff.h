// How two safetensors files differ.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace mneme {

// Prints a line for each tensor of either; returns whether the files are equal by bits.
absl::StatusOr<bool> PrintDiff(const std::string& path_a, const std::string& path_b);

}  // namespace mneme
