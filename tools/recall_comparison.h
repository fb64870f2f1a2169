// Whether rounded arithmetic recalls the engrams that exact arithmetic does.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/tool_runner.h"

namespace mneme {

// The births of the engrams that each segment behind the first one recalled, oldest first.
using Recalls = std::vector<std::vector<uint32_t>>;

// Feeds a text as one session of a runner that is prepared for one. INVALID_ARGUMENT for a model
// that makes no engrams as it generates.
absl::StatusOr<Recalls> RecallsOf(ToolRunner& tool, std::span<const int32_t> ids);

// A line that names the first segment whose recalled set differs, and what does; or that none does.
std::string FirstDifference(const Recalls& exact, const Recalls& rounded);

}  // namespace mneme
