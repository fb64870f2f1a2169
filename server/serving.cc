#include "server/serving.h"

#include <chrono>
#include <future>
#include <system_error>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "base/log_fields.h"
#include "server/config/units.h"
#include "server/process/exit_code.h"
#include "server/process/watchdog.h"

namespace mneme {
namespace {

// For calls to receive their last messages once the engine has drained; docs and help state it.
// Clients that do not read are cut off after it.
constexpr absl::Duration kLastMessagesGrace = absl::Seconds(2);
// And then for threads that are in the middle of something, and destructors; docs state it.
constexpr absl::Duration kEndGrace = absl::Seconds(3);

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

// Health off, no new work, then what runs gets its time. Returns how many sessions are lost.
int Drain(Signals& signals, Watchdog& watchdog, Engine& engine, EngineAccess& access, Doors& doors,
          absl::Duration timeout) {
  LogFields("draining")
      .Add("timeout", FormatMilliseconds(absl::ToInt64Milliseconds(timeout)))
      .Add("running", engine.stats().requests_running.value())
      .Add("waiting", engine.stats().requests_waiting.value())
      .Write(LogSeverity::kInfo);
  access.SetDraining();
  doors.SetServing(false);
  int lost = 0;
  const std::future<void> drained = std::async(std::launch::async, [&] {
    lost = engine.Drain(timeout);
    doors.Shutdown(kLastMessagesGrace);
  });
  WaitOrExit(signals, watchdog, drained);
  if (lost > 0) {
    LogFields("drained")
        .Message("sessions that are not durable could not be saved, and are lost")
        .Add("sessions_lost", lost)
        .Add("exit_code", kSessionsLost)
        .Write(LogSeverity::kError);
  } else {
    LogFields("drained").Write(LogSeverity::kInfo);
  }
  return lost;
}

// Whatever else happens, the process is gone soon: what is wrong with the engine may be wrong with
// others.
[[noreturn]] void EndAfterFatalError(Signals& signals, EngineAccess& access, Doors& doors,
                                     const absl::Status& health) {
  signals.EndWithin(kLastMessagesGrace + kEndGrace, kFatalDeviceError);
  access.SetFailed();
  doors.SetServing(false);
  LogFatal(health);
  try {
    // The engine's loop may never come back, and whoever waits for it neither: no joining.
    std::thread([&doors] { doors.Shutdown(kLastMessagesGrace); }).detach();
  } catch (const std::system_error&) {
    // No thread is to be had: calls are cut off without last messages.
  }
  absl::SleepFor(kLastMessagesGrace);
  ExitNow(kFatalDeviceError);
}

}  // namespace

absl::Duration TimeToEnd(const ServingTimes& times) {
  return times.drain + kLastMessagesGrace + kEndGrace;
}

int ServeUntilSignal(Signals& signals, Clock& clock, Engine& engine, EngineAccess& access,
                     Doors& doors, const ServingTimes& times) {
  Watchdog watchdog(engine, clock, access.stats(),
                    {.limit = times.watchdog,
                     .poll_interval = kSignalPoll,
                     .on_late = [&access, &doors](bool is_late) {
                       access.SetLate(is_late);
                       doors.SetServing(access.CheckReady().ok());
                     }});
  while (true) {
    if (const int signal = signals.Wait(kSignalPoll); signal != 0) {
      LogSignal(signal);
      const int lost = Drain(signals, watchdog, engine, access, doors, times.drain);
      return lost > 0 ? kSessionsLost : kDrained;
    }
    if (const absl::Status health = watchdog.Poll(); !health.ok()) {
      EndAfterFatalError(signals, access, doors, health);
    }
  }
}

}  // namespace mneme
