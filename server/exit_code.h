// What the process ends with; config_text.cc tells users.
#pragma once

#include <unistd.h>

#include <cstdio>

namespace mneme {

enum ExitCode {
  kDrained = 0,
  kBadArguments = 2,
  kModelFailure = 3,
  kDeviceFailure = 4,
  kCannotListen = 5,
  kFatalDeviceError = 6,
};

// Without destructors: other threads may be in the middle of something that cannot be interrupted.
[[noreturn]] inline void ExitNow(int code) {
  fflush(nullptr);
  _exit(code);
}

}  // namespace mneme
