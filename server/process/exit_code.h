// The codes that the process ends with; config_text.cc tells users.
#pragma once

#include <unistd.h>

#include "absl/time/time.h"
#include "base/log_writer.h"

namespace mneme {

enum ExitCode {
  kDrained = 0,
  kBadArguments = 2,
  kModelFailure = 3,
  kDeviceFailure = 4,
  kCannotListen = 5,
  kFatalDeviceError = 6,
  kEndedByForce = 7,
  kSessionsLost = 8,
};

// For the log's last lines, whoever reads them.
inline constexpr absl::Duration kLastLines = absl::Seconds(1);

// Without destructors: other threads may be in the middle of something that cannot be interrupted.
[[noreturn]] inline void ExitNow(int code) {
  (void)FlushLog(kLastLines);
  _exit(code);
}

}  // namespace mneme
