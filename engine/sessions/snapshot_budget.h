// How many bytes a second snapshots may take that nobody needs yet: those at the end of each turn,
// which make it cheap to edit an earlier message.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace mneme {

// Bytes that are not used are saved up, for kSaved at most. Owned by one thread.
class SnapshotBudget {
 public:
  // At first, and after a pause: a chat of 20 turns by somebody who does not wait between them, as
  // long as a state takes at most a twentieth of what is saved up.
  static constexpr absl::Duration kSaved = absl::Seconds(32);

  // 0: there are none.
  explicit SnapshotBudget(int64_t bytes_per_second)
      : rate_(static_cast<double>(bytes_per_second)), left_(Most()) {}

  bool Has(int64_t bytes, absl::Duration now) {
    left_ = std::min(Most(), left_ + rate_ * absl::ToDoubleSeconds(now - last_));
    last_ = now;
    return rate_ > 0 && static_cast<double>(bytes) <= left_;
  }
  void Take(int64_t bytes) { left_ -= static_cast<double>(bytes); }

 private:
  double Most() const { return rate_ * absl::ToDoubleSeconds(kSaved); }

  const double rate_;
  double left_;
  absl::Duration last_ = absl::ZeroDuration();
};

}  // namespace mneme
