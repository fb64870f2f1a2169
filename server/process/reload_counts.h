// How often files were read again, and whether they were in order.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/clock.h"
#include "engine/counters.h"

namespace mneme {

struct ReloadCounts {
  Counter ok;
  Counter failed;
  // The reading at the start included.
  std::atomic<bool> last_ok{true};
  std::atomic<int64_t> last_success_nanos{absl::GetCurrentTimeNanos()};  // since the Unix epoch

  void Add(bool is_ok) {
    (is_ok ? ok : failed).Add();
    last_ok.store(is_ok, std::memory_order_relaxed);
    if (is_ok) last_success_nanos.store(absl::GetCurrentTimeNanos(), std::memory_order_relaxed);
  }
};

}  // namespace mneme
