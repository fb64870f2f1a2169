// The end by an exception that nobody catches. Ours come from the standard library, where the
// system has no further thread or memory.
#pragma once

namespace mneme {

// From now on such an exception is logged, with the limits that are set on the process: one for
// want of memory or threads ends the process with kDeviceFailure, any other aborts it. Nothing is
// unwound.
void EndOnUncaughtExceptions();

}  // namespace mneme
