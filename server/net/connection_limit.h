// The line of the log that says that a port has as many connections as it may have, or the process
// as many files.
#pragma once

#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/log_fields.h"

namespace mneme {

// In the place of a flag: what keeps the process from opening another file.
inline constexpr char kFileLimit[] =
    "the process may open no further file: ulimit -n, LimitNOFILE=";

// Whether accept() failed for want of what closing another connection gives back.
inline bool IsForWant(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

// At most a line a minute. Used by one thread at a time.
class ConnectionLimitLog {
 public:
  // The port's name in the log, and the flag with its limit; empty: none.
  ConnectionLimitLog(std::string api, std::string flag)
      : api_(std::move(api)), flag_(std::move(flag)) {}

  // `evicted`: an idle one was closed instead of the new one.
  void Say(int64_t limit, bool evicted) {
    const absl::Duration now = RealClock().Monotonic();
    if (now < next_) return;
    next_ = now + kInterval;
    LogFields("too_many_connections")
        .Message(absl::StrCat(
            evicted ? "an idle one was closed to make room" : "another one was refused",
            flag_.empty() ? "" : absl::StrCat(" (", flag_, ")")))
        .Add("api", api_)
        .Add("open", limit)
        .Write(LogSeverity::kWarning);
  }

 private:
  static constexpr absl::Duration kInterval = absl::Minutes(1);

  const std::string api_;
  const std::string flag_;
  absl::Duration next_ = -absl::InfiniteDuration();  // monotonic
};

}  // namespace mneme
