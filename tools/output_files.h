// Whether the files that a tool is asked to write would destroy what it reads, or each other.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace mneme {

struct NamedPath {
  std::string name;  // of the flag or argument, for messages
  std::string path;  // empty: not given
};

// INVALID_ARGUMENT, naming both flags, if an output is the same file as another output or as an
// input, or is a file of the model folder. Symbolic and hard links count as what they lead to.
//   model  a folder, of which nothing that exists may be replaced
absl::Status CheckOutputFiles(const std::vector<NamedPath>& outputs,
                              const std::vector<NamedPath>& inputs, const NamedPath& model);

}  // namespace mneme
