#include "server/watchdog.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/log_fields.h"

namespace mneme {
namespace {

std::string Short(absl::Duration time) {
  return absl::FormatDuration(absl::Trunc(time, absl::Milliseconds(1)));
}

}  // namespace

absl::Status Watchdog::Poll() {
  const LoopActivity activity = engine_.activity();
  const absl::Duration limit = engine_.options().watchdog_timeout;
  const bool is_late = activity.in_turn > limit / 2;
  if (is_late_ && !(is_late && activity.step == late_step_)) {
    is_late_ = false;
    LogFields("watchdog")
        .Message(absl::StrCat("step ", late_step_, " went on after more than ", Short(late_by_)))
        .Add("step", late_step_)
        .AddMilliseconds("late_ms", absl::ToDoubleMilliseconds(late_by_))
        .Write(LogSeverity::kWarning);
  }
  if (is_late && !is_late_) {
    is_late_ = true;
    late_step_ = activity.step;
    stats_.watchdog_warnings.Add();
    LogFields("watchdog")
        .Message(absl::StrCat(activity.ToString(), "; the server gives up at ",
                              absl::FormatDuration(limit), " (--watchdog-timeout)"))
        .Add("step", activity.step)
        .Add("phase", StepPhaseName(activity.phase))
        .Add("rows", activity.rows)
        .Add("tokens", activity.tokens)
        .AddMilliseconds("in_turn_ms", absl::ToDoubleMilliseconds(activity.in_turn))
        .Write(LogSeverity::kWarning);
  }
  if (is_late_) late_by_ = activity.in_turn;
  return engine_.health();
}

}  // namespace mneme
