// How full a session's memories are.
#pragma once

#include <vector>

#include "models/state_codec.h"

namespace mneme {

// The Frobenius norm of each matrix memory, heads together, by layer: [layers][memories]; none of a
// layer without one, -1 for a memory that was never written. `state` is canonical, so that no dtype
// of a device matters.
std::vector<std::vector<double>> MemoryNorms(const CanonicalState& state);

}  // namespace mneme
