// Whether what is said to be a session's engrams can be.
#pragma once

#include "absl/status/status.h"
#include "models/mixers/engram_memory.h"
#include "models/state_codec.h"

namespace mneme {

// Whether a state can be whose tensors are of the right dtypes and shapes: kernels go where it
// says. INVALID_ARGUMENT names the tensor, what is wrong with it, and what was expected.
absl::Status CheckEngramState(const CanonicalState& state, const EngramConfig& config);

}  // namespace mneme
