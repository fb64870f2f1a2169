// A line in the log every few seconds: tokens per second, and how full the engine is.
#pragma once

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/log.h"
#include "engine/engine_stats.h"

namespace mneme {

// Called by one thread, the loop's. `stats` must outlive it.
class ThroughputLog {
 public:
  ThroughputLog(const EngineStats& stats, absl::Duration now) : stats_(stats) { Restart(now); }

  // Means are taken from `now` on: idle time counts for nothing.
  void Restart(absl::Duration now) {
    began_ = now;
    prompt_tokens_ = stats_.prompt_tokens.value();
    generated_tokens_ = stats_.generated_tokens.value();
  }
  // Writes the line if it is time for it.
  void WriteIfDue(absl::Duration now) {
    if (now - began_ < kInterval) return;
    const double seconds = absl::ToDoubleSeconds(now - began_);
    const int64_t prompt = stats_.prompt_tokens.value() - prompt_tokens_;
    const int64_t generated = stats_.generated_tokens.value() - generated_tokens_;
    const int64_t used = stats_.slabs_used.value(), slabs = stats_.slabs_total.value();
    Restart(now);
    LOG(INFO) << absl::StrFormat(
        "Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f tokens/s, Running: "
        "%d reqs, Waiting: %d reqs, State slots used: %.1f%% (%d of %d)",
        static_cast<double>(prompt) / seconds, static_cast<double>(generated) / seconds,
        stats_.requests_running.value(), stats_.requests_waiting.value(),
        100.0 * static_cast<double>(used) / static_cast<double>(slabs), used, slabs);
  }

 private:
  static constexpr absl::Duration kInterval = absl::Seconds(10);

  const EngineStats& stats_;
  absl::Duration began_;
  int64_t prompt_tokens_ = 0;
  int64_t generated_tokens_ = 0;
};

}  // namespace mneme
