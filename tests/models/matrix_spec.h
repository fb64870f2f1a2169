// Small networks with matrix memories, for tests.
#pragma once

#include <nlohmann/json.hpp>

#include "absl/strings/string_view.h"
#include "tools/model_maker.h"

namespace mneme {

// The tiny shape of a model_type with other values for some keys, and weights large enough for
// every part to matter.
ModelSpec MatrixSpec(absl::string_view model_type, const nlohmann::ordered_json& changes = {});

}  // namespace mneme
