// The words of `mneme session`: which there are, and what has to follow each.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace mneme::cli {

// `words`: what is to be done, and its arguments. INVALID_ARGUMENT names the word that is unknown,
// an argument that is missing, empty or too much, and how the command is written.
absl::Status CheckSessionWords(const std::vector<std::string>& words);

}  // namespace mneme::cli
