// Sizes for people to read.
#pragma once

#include <cstdint>
#include <string>

namespace mneme {

// Rounded to a tenth of the largest binary unit that fits: "122.1 MiB", "512 B".
std::string HumanBytes(int64_t bytes);

}  // namespace mneme
