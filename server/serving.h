// The life of a server that is ready: until a signal, or a fatal error.
#pragma once

#include "absl/time/time.h"
#include "engine/engine.h"
#include "server/doors.h"
#include "server/engine_access.h"
#include "server/signals.h"

namespace mneme {

// Returns the exit code once a signal has come and what ran has ended, `drain_timeout` later at
// most. Ends the process at a second signal, and when the engine is stuck or its device has failed.
int ServeUntilSignal(Signals& signals, Engine& engine, EngineAccess& access, Doors& doors,
                     absl::Duration drain_timeout);

}  // namespace mneme
