#include "engine/loop_watch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace mneme {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

absl::Duration Since(const std::atomic<int64_t>& began_ns, absl::Duration now) {
  return std::max(absl::ZeroDuration(), now - absl::Nanoseconds(began_ns.load(kRelaxed)));
}

std::string Short(absl::Duration time) {
  return absl::FormatDuration(absl::Trunc(time, absl::Milliseconds(1)));
}

}  // namespace

std::string LoopActivity::ToString() const {
  if (phase == StepPhase::kIdle) return "idle";
  const std::string work =
      rows > 0 ? absl::StrCat(" of ", rows, " rows and ", tokens, " tokens") : "";
  return absl::StrCat("step ", step, work, " is in phase ", StepPhaseName(phase), " for ",
                      Short(in_phase), ", ", Short(in_turn), " after its turn began");
}

void LoopWatch::BeginTurn(absl::Duration now, int64_t step) {
  step_.store(step, kRelaxed);
  SetStep(0, 0);
  turn_began_ns_.store(absl::ToInt64Nanoseconds(now), kRelaxed);
}

void LoopWatch::Enter(StepPhase phase, absl::Duration now) {
  phase_began_ns_.store(absl::ToInt64Nanoseconds(now), kRelaxed);
  // After the times: a reader that sees the loop at work sees when it began, too.
  phase_.store(phase, std::memory_order_release);
}

void LoopWatch::SetStep(int64_t rows, int64_t tokens) {
  rows_.store(rows, kRelaxed);
  tokens_.store(tokens, kRelaxed);
}

LoopActivity LoopWatch::At(absl::Duration now) const {
  LoopActivity activity;
  activity.phase = phase_.load(std::memory_order_acquire);
  if (activity.phase == StepPhase::kIdle) return activity;
  activity.in_phase = Since(phase_began_ns_, now);
  activity.in_turn = Since(turn_began_ns_, now);
  activity.step = step_.load(kRelaxed);
  activity.rows = rows_.load(kRelaxed);
  activity.tokens = tokens_.load(kRelaxed);
  return activity;
}

}  // namespace mneme
