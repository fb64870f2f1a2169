// Variables that look like settings of the server and are none.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace mneme {

struct UnknownVariable {
  std::string name;     // "MNEME_STATE_MEMROY"
  std::string nearest;  // "MNEME_STATE_MEMORY"; empty: none is near
};

// Those of `environment`, entries "NAME=value", whose names begin with MNEME_ and that neither the
// server nor a client reads. Variables that Kubernetes makes for services do not count.
std::vector<UnknownVariable> UnknownVariables(std::span<const char* const> environment);

}  // namespace mneme
