// Work done for one call: counted while it is done, and given up once nobody waits for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "absl/status/status.h"

namespace mneme {

// OK, or why a result is not wanted any more: CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE. Quick, and
// asked from whichever thread works.
using StillWanted = std::function<absl::Status()>;

// One thread at a time.
class WorkMeter {
 public:
  // Without `still_wanted` work is only counted.
  explicit WorkMeter(StillWanted still_wanted = nullptr) : still_wanted_(std::move(still_wanted)) {}

  // For work about to be done. A unit takes some ten to a hundred nanoseconds: a value that is
  // parsed, an operation of a template, sixteen bytes that are written. Once the result is not
  // wanted any more it is an error, then and ever after; that is looked at every millisecond or so.
  [[nodiscard]] absl::Status Add(int64_t units) {
    done_ += units;
    return done_ < next_look_ ? absl::OkStatus() : Look();
  }
  [[nodiscard]] absl::Status AddBytes(size_t bytes) {
    return Add(1 + static_cast<int64_t>(bytes / kBytesPerUnit));
  }
  // Between pieces that take long each.
  [[nodiscard]] absl::Status Look() {
    next_look_ = done_ + kUnitsPerLook;
    if (ended_.ok() && still_wanted_) ended_ = still_wanted_();
    if (!ended_.ok()) next_look_ = 0;
    return ended_;
  }

  // All units so far.
  int64_t done() const { return done_; }

 private:
  static constexpr size_t kBytesPerUnit = 16;
  static constexpr int64_t kUnitsPerLook = 16384;

  const StillWanted still_wanted_;
  int64_t done_ = 0;
  int64_t next_look_ = kUnitsPerLook;
  absl::Status ended_;
};

}  // namespace mneme
