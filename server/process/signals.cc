#include "server/process/signals.h"

#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log_fields.h"
#include "server/process/exit_code.h"

namespace mneme {
namespace {

// For whoever waits to say that a second signal has come.
constexpr absl::Duration kLastWords = absl::Milliseconds(200);
// How many signals to end anybody waits for: the second one is the last.
constexpr int kTold = 2;

absl::Duration Now() { return RealClock().Monotonic(); }

sigset_t OurSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  return set;
}

}  // namespace

void LogSignal(int signal, absl::string_view consequence) {
  LogFields("signal")
      .Message(consequence)
      .Add("name", absl::StrCat("SIG", sigabbrev_np(signal)))
      .Write(LogSeverity::kInfo);
}

// The standard library's lock and condition, as Abseil's timed waits go by the date.
struct Signals::Shared {
  void Run() {
    const sigset_t set = OurSignals();
    while (true) {
      const timespec poll = absl::ToTimespec(kSignalPoll);
      const int signal = sigtimedwait(&set, nullptr, &poll);
      {
        const std::lock_guard lock(mu);
        if (end.has_value() && Now() >= *end) _exit(end_code);
        if (signal <= 0) continue;
        Take(signal);
      }
      changed.notify_all();
    }
  }

  // Under `mu`, as the next one.
  void Take(int signal) {
    if (signal == SIGHUP && reloads) {
      hung_up = true;
      return;
    }
    ++signals_to_end;
    if (signals_to_end <= kTold) to_end.push_back(signal);
    if (signals_to_end == 1 && time_to_end != absl::InfiniteDuration()) {
      EndWithin(time_to_end, kEndedByForce);
    }
    if (signals_to_end >= 2) EndWithin(kLastWords, 128 + signal);
  }

  void EndWithin(absl::Duration time, int code) {
    const absl::Duration then = Now() + time;
    if (end.has_value() && *end <= then) return;
    end = then;
    end_code = code;
  }

  std::mutex mu;
  std::condition_variable changed;
  // Under `mu`.
  std::deque<int> to_end;  // for Wait, kTold of them at most
  bool hung_up = false;    // for Wait: SIGHUP has come, however often
  bool reloads = false;    // SIGHUP does not end the process
  int64_t signals_to_end = 0;
  absl::Duration time_to_end = absl::InfiniteDuration();
  std::optional<absl::Duration> end;  // monotonic: when the process ends, with
  int end_code = 0;
};

absl::StatusOr<std::unique_ptr<Signals>> Signals::Start() {
  const sigset_t set = OurSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  auto shared = std::make_shared<Shared>();
  try {
    std::thread([shared] { shared->Run(); }).detach();
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot start a thread: ", error.what()));
  }
  return std::unique_ptr<Signals>(new Signals(std::move(shared)));
}

Signals::Signals(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

void Signals::OnHangUp(std::function<void()> reload) {
  reload_ = std::move(reload);
  const std::lock_guard lock(shared_->mu);
  shared_->reloads = true;
}

int Signals::Wait(absl::Duration timeout) {
  bool hung_up = false;
  {
    std::unique_lock lock(shared_->mu);
    shared_->changed.wait_for(lock, absl::ToChronoNanoseconds(timeout),
                              [this] { return !shared_->to_end.empty() || shared_->hung_up; });
    if (!shared_->to_end.empty()) {
      const int signal = shared_->to_end.front();
      shared_->to_end.pop_front();
      return signal;
    }
    hung_up = std::exchange(shared_->hung_up, false);
  }
  if (hung_up) reload_();
  return 0;
}

void Signals::LimitEnd(absl::Duration time) {
  const std::lock_guard lock(shared_->mu);
  shared_->time_to_end = time;
}

void Signals::EndWithin(absl::Duration time, int code) {
  const std::lock_guard lock(shared_->mu);
  shared_->EndWithin(time, code);
}

}  // namespace mneme
