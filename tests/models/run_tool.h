// The offline tools as programs, and the files they write.
#pragma once

#include <string>
#include <vector>

#include "tests/models/test_folder.h"

namespace mneme {

struct ToolOutcome {
  int code = 0;
  std::string output;  // both streams
};

// Runs a tool of this build, or of the folder MNEME_BIN_DIR; arguments are ours, so no quoting is
// needed.
ToolOutcome RunTool(const std::string& tool, const std::string& arguments);

// The elements of a tensor, which are of type T.
template <typename T>
std::vector<double> Values(const StoredTensors& tensors, const std::string& name) {
  const StoredTensor& tensor = tensors.at(name);
  const auto* values = reinterpret_cast<const T*>(tensor.bytes.data());
  return {values, values + tensor.bytes.size() / sizeof(T)};
}

}  // namespace mneme
