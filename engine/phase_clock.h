// Where the loop's time goes: counted by phase, and shown while it passes.
#pragma once

#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/engine_stats.h"
#include "engine/loop_watch.h"

namespace mneme {

// The loop's thread calls it, but for activity(), which any thread may. `clock` and `stats` must
// outlive it.
class PhaseClock {
 public:
  PhaseClock(Clock& clock, EngineStats& stats)
      : clock_(clock), stats_(stats), began_(clock.Monotonic()) {}

  // All that has passed since the last call belongs to `phase`; `next` begins. Returns the time.
  absl::Duration End(StepPhase phase, StepPhase next) {
    const absl::Duration now = clock_.Monotonic();
    stats_.phase_nanoseconds[static_cast<size_t>(phase)].Add(
        absl::ToInt64Nanoseconds(now - began_));
    began_ = now;
    watch_.Enter(next, now);
    return now;
  }
  // A turn of the loop begins with phase `next`, `steps` steps after the start.
  void BeginTurn(StepPhase next, int64_t steps) {
    watch_.BeginTurn(End(StepPhase::kIdle, next), steps);
  }
  // The size of the turn's step.
  void SetStep(int rows, int tokens) { watch_.SetStep(rows, tokens); }

  LoopActivity activity() const { return watch_.At(clock_.Monotonic()); }

 private:
  Clock& clock_;
  EngineStats& stats_;
  LoopWatch watch_;
  absl::Duration began_;
};

}  // namespace mneme
