#include "server/watchdog.h"

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace mneme {

absl::Status Watchdog::Poll() {
  const LoopActivity activity = engine_.activity();
  const absl::Duration limit = engine_.options().watchdog_timeout;
  const bool is_late = activity.in_turn > limit / 2;
  if (is_late_ && !(is_late && activity.step == late_step_)) {
    is_late_ = false;
    LOG(WARNING) << "watchdog: step " << late_step_ << " went on after more than "
                 << absl::FormatDuration(absl::Trunc(late_by_, absl::Milliseconds(1)));
  }
  if (is_late && !is_late_) {
    is_late_ = true;
    late_step_ = activity.step;
    stats_.watchdog_warnings.Add();
    LOG(WARNING) << "watchdog: " << activity.ToString() << "; the server gives up at "
                 << absl::FormatDuration(limit) << " (--watchdog-timeout)";
  }
  if (is_late_) late_by_ = activity.in_turn;
  return engine_.health();
}

}  // namespace mneme
