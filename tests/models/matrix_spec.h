// Small networks with matrix memories, for tests.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/string_view.h"
#include "models/architecture.h"
#include "tools/model_maker.h"

namespace mneme {

// The tiny shape of a model_type with other values for some keys, and weights large enough for
// every part to matter.
ModelSpec MatrixSpec(absl::string_view model_type, const nlohmann::ordered_json& changes = {});

// Whether the family gives an example of a network with matrix memories.
bool IsMatrixExample(const Architecture& architecture);
std::vector<const Architecture*> MatrixExamples();

}  // namespace mneme
