// The life of a server that is ready: until a signal, or a fatal error.
#pragma once

#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/engine.h"
#include "server/doors.h"
#include "server/process/signals.h"
#include "server/requests/engine_access.h"

namespace mneme {

// The time that running requests have after a signal, and that after which a step is taken for
// stuck.
struct ServingTimes {
  absl::Duration drain;     // --shutdown-timeout
  absl::Duration watchdog;  // --watchdog-timeout
};

// The longest that the process lives after a first signal: the drain, calls' last messages, and a
// while for what does not look at signals to come to an end.
absl::Duration TimeToEnd(const ServingTimes& times);

// Returns the exit code once a signal has come and what ran has ended, `times.drain` later at most.
// Ends the process at a second signal, and when the engine is stuck or its device has failed.
int ServeUntilSignal(Signals& signals, Clock& clock, Engine& engine, EngineAccess& access,
                     Doors& doors, const ServingTimes& times);

}  // namespace mneme
