#include "server/serving.h"

#include <chrono>
#include <future>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "base/log_fields.h"
#include "server/config/units.h"
#include "server/exit_code.h"
#include "server/watchdog.h"

namespace mneme {
namespace {

// For calls to receive their last messages once the engine has drained; docs and help state it.
// Clients that do not read are cut off after it.
constexpr absl::Duration kLastMessagesGrace = absl::Seconds(2);

void LogFatal(const absl::Status& health) {
  LogFields("fatal")
      .Message(health.message())
      .Add("exit_code", kFatalDeviceError)
      .Write(LogSeverity::kError);
}

// Ends the process at once on a second signal, and when the engine is stuck, while `done` is
// awaited.
void WaitOrExit(Signals& signals, Watchdog& watchdog, const std::future<void>& done) {
  while (done.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    if (const int signal = signals.Wait(kSignalPoll); signal != 0) {
      LogSignal(signal, "the second one: ending at once");
      ExitNow(128 + signal);
    }
    if (const absl::Status health = watchdog.Poll(); !health.ok()) {
      LogFatal(health);
      ExitNow(kFatalDeviceError);
    }
  }
}

// Health off, no new work, then what runs gets its time.
void Drain(Signals& signals, Watchdog& watchdog, Engine& engine, EngineAccess& access, Doors& doors,
           absl::Duration timeout) {
  LogFields("draining")
      .Add("timeout", FormatMilliseconds(absl::ToInt64Milliseconds(timeout)))
      .Add("running", engine.stats().requests_running.value())
      .Add("waiting", engine.stats().requests_waiting.value())
      .Write(LogSeverity::kInfo);
  doors.SetServing(false);
  access.SetDraining();
  const std::future<void> drained = std::async(std::launch::async, [&] {
    engine.Drain(timeout);
    doors.Shutdown(kLastMessagesGrace);
  });
  WaitOrExit(signals, watchdog, drained);
  LogFields("drained").Write(LogSeverity::kInfo);
}

[[noreturn]] void EndAfterFatalError(EngineAccess& access, Doors& doors) {
  doors.SetServing(false);
  access.SetFailed();
  // The engine's loop may never come back, and whoever waits for it neither: no joining.
  std::thread([&doors] { doors.Shutdown(kLastMessagesGrace); }).detach();
  absl::SleepFor(kLastMessagesGrace);
  ExitNow(kFatalDeviceError);
}

}  // namespace

int ServeUntilSignal(Signals& signals, Engine& engine, EngineAccess& access, Doors& doors,
                     absl::Duration drain_timeout) {
  Watchdog watchdog(engine, access.stats());
  while (true) {
    if (const int signal = signals.Wait(kSignalPoll); signal != 0) {
      LogSignal(signal);
      Drain(signals, watchdog, engine, access, doors, drain_timeout);
      return kDrained;
    }
    if (const absl::Status health = watchdog.Poll(); !health.ok()) {
      LogFatal(health);
      EndAfterFatalError(access, doors);
    }
  }
}

}  // namespace mneme
