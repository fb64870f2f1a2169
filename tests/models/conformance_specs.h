// Small networks of every architecture, for the conformance program.
#pragma once

#include <vector>

#include "absl/strings/string_view.h"
#include "tools/model_maker.h"

namespace mneme {

// One network for each of the model_type's ways to keep a state; none for a model_type that is not
// known here.
std::vector<ModelSpec> ConformanceSpecs(absl::string_view model_type);

}  // namespace mneme
