// Small networks of every architecture, for the conformance program.
#pragma once

#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "models/architecture.h"
#include "tests/support/backends.h"
#include "tools/model_maker.h"

namespace mneme {

// One network for each of the model_type's ways to keep a state: those that it registered
// (Architecture::ways), and those that need more than other keys. None for a model_type that has
// neither.
std::vector<ModelSpec> ConformanceSpecs(absl::string_view model_type);

// Every model_type that classifies texts, or every one that generates.
std::vector<const Architecture*> ArchitecturesThat(bool classify);

using ConformanceCase = std::tuple<const Architecture*, BackendUnderTest>;
// Names the cases of a suite: mom_cpu_avx2, ...
std::string ConformanceName(const testing::TestParamInfo<ConformanceCase>& info);

}  // namespace mneme
