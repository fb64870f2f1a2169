// Forgetting what segments of a session were: the engrams that were made of them.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "models/mixers/engram_memory.h"
#include "models/state_codec.h"

namespace mneme {

// Takes the engrams that were made of segments [first, end) out of a state that CheckEngramState
// takes: with all that is known of them, with their counts beside others and, where tokens of the
// open segment attend to them, with their keys, values and sums there. What is left moves up and
// is the same to the bit. A function of its arguments alone.
//
// What others have of them stays: later engrams were made by tokens that attended to these.
//
// 0 <= first < end. FAILED_PRECONDITION where that reaches the open segment, whose tokens are not
// engrams yet: the state is then as it was. It is also where no engram is left of these segments.
absl::StatusOr<ForgottenEngrams> ForgetEngrams(const EngramConfig& config, int64_t first,
                                               int64_t end, CanonicalState& state);

}  // namespace mneme
