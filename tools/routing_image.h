// A picture of where tokens went.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "tools/routing_tape.h"

namespace mneme {

// A PNG heat map: a row of pixels for each (layer, memory), layers from top to bottom and separated
// by a line, a column for each token; dark where it did not go, white for weight 1. Cells are
// blown up to be seen. UNIMPLEMENTED in a build without libpng.
absl::Status WriteRoutingImage(const RoutingTape& tape, const std::string& path);

}  // namespace mneme
