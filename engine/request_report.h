// How a request ended: what logs say about it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/request.h"

namespace mneme {

// Plain data, without a word of what was asked or answered.
struct RequestReport {
  std::string id;
  RequestOrigin origin;
  SessionKey session;
  int n = 1;
  bool admitted = false;  // false: refused, or it ended while it waited
  bool replayed = false;  // answered from the record of an idempotency key; nothing else is known
  absl::Status status;
  FinishReason finish = FinishReason::kNone;  // of choice 0
  bool context_full = false;                  // TokenEvent::context_full of any choice
  Usage usage;
  Timings timings;
  absl::Duration total;  // submitted -> ended
};

// Called on the loop's thread, once for every request that Submit took: it must not block.
using RequestReporter = std::function<void(RequestReport)>;

}  // namespace mneme
