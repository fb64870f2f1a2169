// A session's engrams on their way to a server that has room for another number of them.
#pragma once

#include "absl/status/status.h"
#include "models/mixers/engram_memory.h"
#include "models/state_codec.h"

namespace mneme {

// Makes a state of a session that had room for any number of engrams one of a session that has room
// for `config.capacity`: those that there are lie in other slots, in the same order, and nothing
// else is changed, so that what follows is the same to the bit for as long as neither room is too
// small. A history becomes counts where the new store has such. No change where the room is the
// same. A function of its arguments alone.
//
// INVALID_ARGUMENT names a tensor that no such state has. FAILED_PRECONDITION, which names both
// rooms: more engrams than there is room for, counts that were to be a history (they do not say
// when engrams fired), or a history that no longer has all firings and was to be counts. The state
// is then as it was.
absl::Status FitEngrams(const EngramConfig& config, CanonicalState& state);

}  // namespace mneme
