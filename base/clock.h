// Time as something that is passed in, so that tests decide when it passes.
#pragma once

#include "absl/time/time.h"

namespace mneme {

// All methods may be called from any thread.
class Clock {
 public:
  virtual ~Clock() = default;

  // Never goes backwards and ignores changes of the system's date; its origin means nothing. For
  // measuring and for deadlines inside the process.
  virtual absl::Duration Monotonic() const = 0;

  // The date, for what people and other machines read.
  virtual absl::Time Now() const = 0;
};

class RealClock final : public Clock {
 public:
  absl::Duration Monotonic() const override;
  absl::Time Now() const override;
};

}  // namespace mneme
