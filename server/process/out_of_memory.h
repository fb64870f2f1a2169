// Want of memory as the error of one call: whoever asked for too much is told so, and others go on.
#pragma once

#include <new>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/status_payload.h"

namespace mneme {

inline constexpr char kReasonOutOfMemory[] = "OUT_OF_MEMORY";

// RESOURCE_EXHAUSTED, with a time after which to try again: others may have ended by then.
inline absl::Status OutOfMemoryError() {
  return WithRetryAfter(
      WithReason(absl::ResourceExhaustedError("the server has not enough memory for the request"),
                 kReasonOutOfMemory),
      absl::Seconds(1));
}

// Runs `work`, and `refuse` with the error if memory ran out in it. By then all that `work` held is
// given back; `refuse` takes little. To be put around the whole of what is done for a call on a
// thread that goes on after it.
template <typename Work, typename Refuse>
void RunOrRefuse(const Work& work, const Refuse& refuse) {
  bool is_done = false;
  try {
    work();
    is_done = true;
  } catch (const std::bad_alloc&) {
    // Refused below, where nothing of the exception is held any more.
  }
  if (!is_done) refuse(OutOfMemoryError());
}

}  // namespace mneme
