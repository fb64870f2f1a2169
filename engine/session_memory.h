// Changes to the memory of one session in its slab, between the steps that feed it.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/sessions/session.h"
#include "engine/state_pool.h"
#include "models/model.h"

namespace mneme {

// All of this is for the loop's thread. The session has a slab, which no step in flight feeds.

// Draws the memory of a session with a seed of its own, where it was not fed anything yet.
void SeedMemory(const Model& model, StatePool& pool, const Session& session);

// Takes the engrams of segments [first, end) from a copy of the state on the host, and writes that
// back as a whole. Any error but one of the device leaves the session as it was:
// FAILED_PRECONDITION where one of these segments is not closed yet.
absl::StatusOr<ForgottenEngrams> ForgetEngrams(const Model& model, StatePool& pool,
                                               const Session& session, int64_t first, int64_t end);

}  // namespace mneme
