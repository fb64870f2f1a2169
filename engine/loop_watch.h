// The engine's loop and what it is doing right now, for whoever asks from outside: it may be stuck,
// and then cannot tell by itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "engine/engine_stats.h"

namespace mneme {

// A turn of the loop: from taking what clients want to the end of the step.
struct LoopActivity {
  StepPhase phase = StepPhase::kIdle;  // kIdle: waits for something to do, as long as it likes
  absl::Duration in_phase;             // for so long; zero while idle
  absl::Duration in_turn;              // the same of the whole turn
  int64_t step = 0;                    // steps before this one, since the start
  int64_t rows = 0;                    // of the step; 0 while it is being planned
  int64_t tokens = 0;                  // fed in it

  // "step 17 of 3 rows and 512 tokens is in phase forward for 1.2s, 1.3s after its turn began"
  std::string ToString() const;
};

// The loop's thread writes; any thread reads, and may see a phase together with the numbers of the
// one before: good enough for times that matter, which are seconds.
class LoopWatch {
 public:
  void BeginTurn(absl::Duration now, int64_t step);
  void Enter(StepPhase phase, absl::Duration now);
  void SetStep(int64_t rows, int64_t tokens);

  // `now` by the same clock as above.
  LoopActivity At(absl::Duration now) const;

 private:
  std::atomic<StepPhase> phase_{StepPhase::kIdle};
  std::atomic<int64_t> phase_began_ns_{0};
  std::atomic<int64_t> turn_began_ns_{0};
  std::atomic<int64_t> step_{0};
  std::atomic<int64_t> rows_{0};
  std::atomic<int64_t> tokens_{0};
};

}  // namespace mneme
