// What a request is told that comes again, by its idempotency key.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/idempotency.h"
#include "engine/request.h"
#include "engine/sessions/session.h"

namespace mneme {

// Whether the named session that a request ran in has ended since; what has its name now, if
// anything does, is another.
bool IsSessionGone(const KeyRecord& record, const SessionKey& key, const Session* session);

// OK if `known`, the record of the request's idempotency key, has its answer. `digest`: the
// request's; `session`: the one that has its name now, or null. INVALID_ARGUMENT: it is of another
// request. ABORTED, with the position: that one still runs, broke off, was undone, or its answer is
// no longer kept.
absl::Status CheckRepetition(const KeyRecord& known, uint64_t digest, const Request& request,
                             const Session* session);

}  // namespace mneme
