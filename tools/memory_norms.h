// How full a session's memories are.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "tools/tool_runner.h"

namespace mneme {

// Frobenius norm of each memory's matrices, heads together, by layer: [layers][memories]. Nothing
// for a memory that was never written: -1. Settles the slab `slot` of the prepared tool.
absl::StatusOr<std::vector<std::vector<double>>> MemoryNorms(ToolRunner& tool, int slot);

}  // namespace mneme
