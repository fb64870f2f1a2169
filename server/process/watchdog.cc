#include "server/process/watchdog.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/log_fields.h"

namespace mneme {
namespace {

// A shorter one is a busy machine's and worth no line.
constexpr absl::Duration kGapWorthALine = absl::Seconds(1);

std::string Short(absl::Duration time) {
  return absl::FormatDuration(absl::Trunc(time, absl::Milliseconds(1)));
}

// How much of the last `age` until `now` lies in the gap.
absl::Duration Overlap(absl::Duration gap_begin, absl::Duration gap_end, absl::Duration age,
                       absl::Duration now) {
  return std::max(absl::ZeroDuration(), gap_end - std::max(gap_begin, now - age));
}

}  // namespace

void Watchdog::NoticeGap(absl::Duration now) {
  const absl::Duration begin = last_poll_ + options_.poll_interval;
  last_poll_ = now;
  if (now <= begin) return;
  gaps_.push_back({.begin = begin, .end = now});
  if (now - begin < kGapWorthALine) return;
  LogFields("pause")
      .Message(absl::StrCat("the process did not run for ", Short(now - begin),
                            ": stopped, suspended, or no time for it on this machine"))
      .AddMilliseconds("pause_ms", absl::ToDoubleMilliseconds(now - begin))
      .Write(LogSeverity::kWarning);
}

LoopActivity Watchdog::WithoutGaps(LoopActivity activity, absl::Duration now) {
  std::erase_if(gaps_, [&](const Gap& gap) { return gap.end <= now - activity.in_turn; });
  absl::Duration of_phase, of_turn;
  for (const Gap& gap : gaps_) {
    of_phase += Overlap(gap.begin, gap.end, activity.in_phase, now);
    of_turn += Overlap(gap.begin, gap.end, activity.in_turn, now);
  }
  activity.in_phase -= of_phase;
  activity.in_turn -= of_turn;
  return activity;
}

absl::Status Watchdog::Poll() {
  const absl::Duration now = clock_.Monotonic();
  NoticeGap(now);
  const LoopActivity activity = WithoutGaps(engine_.activity(), now);
  const bool is_late = activity.in_turn > options_.limit / 2;
  if (is_late_ && !(is_late && activity.step == late_step_)) {
    is_late_ = false;
    if (!is_late) options_.on_late(false);
    LogFields("watchdog")
        .Message(absl::StrCat("step ", late_step_, " went on after more than ", Short(late_by_)))
        .Add("step", late_step_)
        .AddMilliseconds("late_ms", absl::ToDoubleMilliseconds(late_by_))
        .Write(LogSeverity::kWarning);
  }
  if (is_late && !is_late_) {
    is_late_ = true;
    late_step_ = activity.step;
    options_.on_late(true);
    stats_.watchdog_warnings.Add();
    LogFields("watchdog")
        .Message(absl::StrCat(activity.ToString(), "; the server gives up at ",
                              absl::FormatDuration(options_.limit), " (--watchdog-timeout)"))
        .Add("step", activity.step)
        .Add("phase", StepPhaseName(activity.phase))
        .Add("rows", activity.rows)
        .Add("tokens", activity.tokens)
        .AddMilliseconds("in_turn_ms", absl::ToDoubleMilliseconds(activity.in_turn))
        .Write(LogSeverity::kWarning);
  }
  if (is_late_) late_by_ = activity.in_turn;
  if (const absl::Status device = engine_.health(); !device.ok()) return device;
  if (activity.in_turn <= options_.limit) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("stuck: ", activity.ToString(), ", longer than ",
                                          absl::FormatDuration(options_.limit)));
}

}  // namespace mneme
