// Errors that say that an owner has as much as it may (StoreLimits): another owner's batch would
// not have met with them, and time does not help.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace mneme {

enum class OwnerLimit {
  kSessions,
  kBytes,  // logs and snapshots
};

// RESOURCE_EXHAUSTED.
absl::Status OverLimit(OwnerLimit limit, absl::string_view message);
// Nothing: it is another error.
std::optional<OwnerLimit> ExceededLimit(const absl::Status& status);

}  // namespace mneme
