// The signals of the process.
#pragma once

#include <signal.h>

#include <cstring>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/log_fields.h"

namespace mneme {

// How long to wait for one between looks at something else.
inline constexpr absl::Duration kSignalPoll = absl::Milliseconds(100);

inline void LogSignal(int signal, absl::string_view consequence = "") {
  LogFields("signal")
      .Message(consequence)
      .Add("name", absl::StrCat("SIG", sigabbrev_np(signal)))
      .Write(LogSeverity::kInfo);
}

// SIGINT, SIGTERM and SIGHUP, taken one by one instead of interrupting somebody.
class Signals {
 public:
  // Before any thread is started: they inherit the mask.
  Signals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    signal(SIGPIPE, SIG_IGN);
  }

  // What to do at SIGHUP, inside Wait. Without it SIGHUP is a signal to end, as by default.
  void OnHangUp(std::function<void()> reload) { reload_ = std::move(reload); }
  // What to do about once a second, inside Wait.
  void OnTick(std::function<void()> tick) { tick_ = std::move(tick); }

  // The next signal to end, or 0 after `timeout` or a reload.
  int Wait(absl::Duration timeout) {
    const timespec time = absl::ToTimespec(timeout);
    const int signal = sigtimedwait(&set_, nullptr, &time);
    if (const absl::Time now = absl::Now(); tick_ && now - last_tick_ >= absl::Seconds(1)) {
      last_tick_ = now;
      tick_();
    }
    if (signal == SIGHUP && reload_) {
      reload_();
      return 0;
    }
    return signal > 0 ? signal : 0;
  }

 private:
  sigset_t set_;
  std::function<void()> reload_;
  std::function<void()> tick_;
  absl::Time last_tick_ = absl::InfinitePast();
};

}  // namespace mneme
